#!/usr/bin/env python3
"""Makes train_1k.csv, in the columns of Kaggle's taxi fare challenge, from trips in Chicago.

usage: make_train_1k.py [CHICAGO_CSV] >train_1k.csv

Chicago's trips know no passengers: each has one. Places there are centres of census tracts and
times are rounded to quarters of an hour, so two trips may look alike; a number makes keys differ.
"""
import csv
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
DATA = Path(os.environ.get("MUSTER_DATA") or CACHE / "muster/data")
ROWS = 1000
PLACES = ["pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude"]


def main(source):
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["key", "fare_amount", "pickup_datetime", *PLACES, "passenger_count"])
    n = 0
    with open(source, newline="") as f:
        for trip in csv.DictReader(f):
            if n == ROWS:
                break
            if not trip["fare"] or not all(trip[p] for p in PLACES):
                continue
            n += 1
            when = datetime.fromtimestamp(int(trip["trip_start_timestamp"]), timezone.utc)
            out.writerow([f"{when:%Y-%m-%d %H:%M:%S}.{n:07}", trip["fare"],
                          f"{when:%Y-%m-%d %H:%M:%S} UTC", *(trip[p] for p in PLACES), 1])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else DATA / "chicago_taxi.csv")
