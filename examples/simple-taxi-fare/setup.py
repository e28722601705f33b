"""Installs the package where it is trained: requirements.txt travels with it (MANIFEST.in)."""
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

setup(
    name="SimpleTaxiFare",
    version="1.0",
    description="fare_amount ~ C * distance",
    packages=find_packages(),
    install_requires=(HERE / "requirements.txt").read_text().split(),
    include_package_data=True,
    zip_safe=False,
)
