"""Trains fare_amount ~ C * distance on trips in a bucket, and puts the model into the bucket."""
import joblib
import numpy as np
import pandas as pd
from google.cloud import storage
from sklearn.linear_model import LinearRegression

BUCKET_NAME = "simple-taxi-fare"
BUCKET_TRAIN_DATA_PATH = "data/train_1k.csv"
STORAGE_LOCATION = "models/simpletaxifare/model.joblib"

EARTH_RADIUS_KM = 6371.0


def get_data():
    """The training data, out of the bucket."""
    return pd.read_csv(f"gs://{BUCKET_NAME}/{BUCKET_TRAIN_DATA_PATH}")


def compute_distance(df):
    """Kilometres between pickup and dropoff along a great circle (haversine), one for each row."""
    lat1, lon1, lat2, lon2 = (np.radians(df[column]) for column in (
        "pickup_latitude", "pickup_longitude", "dropoff_latitude", "dropoff_longitude"))
    a = (np.sin((lat2 - lat1) / 2) ** 2
         + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2)
    return 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(a))


def preprocess(df):
    """X (the distance alone) and y; trips that went nowhere or cost nothing say nothing."""
    df = df.dropna().assign(distance=compute_distance)
    df = df[(df.distance > 0) & (df.fare_amount > 0)]
    return df[["distance"]], df["fare_amount"]


def train_model(X_train, y_train):
    """A line through the origin: the one weight is C."""
    reg = LinearRegression(fit_intercept=False)
    reg.fit(X_train, y_train)
    print(f"trained on {len(X_train)} trips: fare_amount = {reg.coef_[0]:.3f} * distance",
          flush=True)
    return reg


def save_model(reg):
    """model.joblib here, and from here to the bucket."""
    joblib.dump(reg, "model.joblib")
    print("saved model.joblib locally", flush=True)
    storage.Client().bucket(BUCKET_NAME).blob(STORAGE_LOCATION).upload_from_filename("model.joblib")
    print(f"uploaded model.joblib to gs://{BUCKET_NAME}/{STORAGE_LOCATION}", flush=True)


if __name__ == "__main__":
    X, y = preprocess(get_data())
    save_model(train_model(X, y))
