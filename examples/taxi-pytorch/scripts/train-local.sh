#!/bin/sh
# Trains here, in this shell's Python, on files of this machine.
#
#   TAXI_TRAIN_SMALL, TAXI_EVAL_SMALL   the data (scripts/make-data.py data)
#   JOB_DIR                             where the model goes
# May be run or sourced.
(
set -eu
cd "$(dirname "${BASH_SOURCE:-$0}")/.."

TAXI_TRAIN_SMALL=${TAXI_TRAIN_SMALL:-$PWD/data/taxi_train_small.csv}
TAXI_EVAL_SMALL=${TAXI_EVAL_SMALL:-$PWD/data/taxi_eval_small.csv}
JOB_DIR=${JOB_DIR:-$PWD/runs/local}

[ -e "$TAXI_TRAIN_SMALL" ] || scripts/make-data.py "$(dirname "$TAXI_TRAIN_SMALL")"

python -m trainer.task \
    --train-files "$TAXI_TRAIN_SMALL" \
    --eval-files "$TAXI_EVAL_SMALL" \
    --job-dir "$JOB_DIR" \
    "$@"
)
