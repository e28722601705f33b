"""What the data is: the task, the columns, which of them are features and how, the target.

The other modules know no column by name. Another table is another file like this one.
"""

# "classification" or "regression"
TASK_TYPE = "classification"

# The columns of the CSV files, which have no header.
HEADER = [
    "tip",
    "trip_miles",
    "trip_seconds",
    "fare",
    "trip_start_month",
    "trip_start_hour",
    "trip_start_day",
    "pickup_community_area",
    "dropoff_community_area",
    "payment_type",
    "company",
]

# Texts that mean "no value".
MISSING = ["", "NA"]

# Standardised with mean and deviation of the training rows; see inputs.process_features for the
# ones that are made of others.
NUMERIC_FEATURE_NAMES = ["trip_miles", "trip_seconds", "fare", "speed"]

# Those of them whose logarithm is taken first: they are skewed.
LOG_FEATURE_NAMES = ["trip_miles", "trip_seconds", "fare", "speed"]

# Integers 0 .. n-1: name and n. What lies outside, or is missing, has an id of its own.
IDENTITY_FEATURES = {
    "trip_start_month": 13,
    "trip_start_hour": 24,
    "trip_start_day": 8,
    "pickup_community_area": 78,
    "dropoff_community_area": 78,
}

# Words; the vocabulary is that of the training rows, and the rest has an id of its own.
VOCABULARY_FEATURES = ["payment_type", "company"]

# How wide the embedding of a categorical feature is.
EMBEDDING_SIZE = 8

TARGET_NAME = "tip"

# The texts of the target's classes, in order; for a regression: not used.
TARGET_LABELS = ["0", "1"]
