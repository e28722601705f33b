#!/bin/sh
# Submits the package as a training job and follows it to its end.
#
#   BUCKET_NAME                                  the bucket of data, packages and models
#   GCS_TAXI_TRAIN_SMALL, GCS_TAXI_EVAL_SMALL    the data in it
#   IMAGE_URI, SCALE_TIER                        for a GPU: pytorch-gpu.1-4 and BASIC_GPU
# May be run or sourced.
(
set -eu
cd "$(dirname "${BASH_SOURCE:-$0}")/.."

BUCKET_NAME=${BUCKET_NAME:-taxi-pytorch}
GCS_TAXI_TRAIN_SMALL=${GCS_TAXI_TRAIN_SMALL:-gs://$BUCKET_NAME/data/taxi_train_small.csv}
GCS_TAXI_EVAL_SMALL=${GCS_TAXI_EVAL_SMALL:-gs://$BUCKET_NAME/data/taxi_eval_small.csv}
IMAGE_URI=${IMAGE_URI:-gcr.io/cloud-ml-public/training/pytorch-cpu.1-4}
SCALE_TIER=${SCALE_TIER:-BASIC}
REGION=${REGION:-us-central1}
JOB_NAME=${JOB_NAME:-taxi_pytorch_$(date +%Y%m%d_%H%M%S)}
JOB_DIR=${JOB_DIR:-gs://$BUCKET_NAME/models/$JOB_NAME}

gcloud ai-platform jobs submit training "$JOB_NAME" \
    --region "$REGION" \
    --master-image-uri "$IMAGE_URI" \
    --scale-tier "$SCALE_TIER" \
    --job-dir "$JOB_DIR" \
    --module-name trainer.task \
    --package-path trainer \
    --stream-logs \
    -- \
    --train-files "$GCS_TAXI_TRAIN_SMALL" \
    --eval-files "$GCS_TAXI_EVAL_SMALL" \
    "$@"
)
