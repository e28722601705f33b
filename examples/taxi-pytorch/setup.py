"""The package as it is staged. PyTorch is not listed: it comes with the image the job runs on."""
from setuptools import find_packages, setup

setup(
    name="taxi-pytorch",
    version="1.0",
    description="does a rider tip more than 20 % of the fare?",
    packages=find_packages(include=["trainer"]),
    install_requires=["google-cloud-storage", "pandas"],
)
