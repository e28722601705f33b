"""bench/peers/csv_read.py NAME FILE - a peer's side of bench/csv.py: a CSV file to typed columns

Each reads with 2 threads (the environment sets POLARS_MAX_THREADS). "typed" gives the types instead
of having them guessed, "categories" makes dictionaries of the two text columns: what the peer's own
manual recommends for speed.
"""
import os
import sys

from serve import serve

INTEGERS = ("pickup_community_area", "trip_start_month", "trip_start_hour", "trip_start_day",
            "trip_start_timestamp", "pickup_census_tract", "dropoff_census_tract", "trip_seconds",
            "dropoff_community_area")
NUMBERS = ("fare", "pickup_latitude", "pickup_longitude", "dropoff_latitude", "dropoff_longitude",
           "trip_miles", "tips")
TEXTS = ("payment_type", "company")


def pandas_reader(engine):
    import pandas
    return lambda path: pandas.read_csv(path, engine=engine)


def arrow_reader(categories):
    import pyarrow
    from pyarrow import csv
    pyarrow.set_cpu_count(2)
    types = dict.fromkeys(INTEGERS, pyarrow.int64()) | dict.fromkeys(NUMBERS, pyarrow.float64())
    types |= dict.fromkeys(TEXTS, pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))
    convert = csv.ConvertOptions(column_types=types) if categories else None
    return lambda path: csv.read_csv(path, convert_options=convert)


def polars_reader(categories):
    import polars
    types = dict.fromkeys(INTEGERS, polars.Int64) | dict.fromkeys(NUMBERS, polars.Float64)
    types |= dict.fromkeys(TEXTS, polars.Categorical)
    return lambda path: polars.read_csv(path, schema_overrides=types if categories else None,
                                        infer_schema_length=100 if categories else 10000)


READERS = {
    "pandas-c": lambda: pandas_reader("c"),
    "pandas-pyarrow": lambda: pandas_reader("pyarrow"),
    "pyarrow": lambda: arrow_reader(False),
    "pyarrow-categories": lambda: arrow_reader(True),
    "polars": lambda: polars_reader(False),
    "polars-categories": lambda: polars_reader(True),
}

if __name__ == "__main__":
    name, file = sys.argv[1:]
    reader = READERS[name]()
    serve(lambda: len(reader(file)), os.path.getsize(file) / 1e6)
