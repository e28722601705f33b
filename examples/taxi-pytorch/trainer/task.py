"""The entry point: the parameters of an experiment, from the command line."""
import argparse

from trainer import experiment


def sizes(text):
    return [int(n) for n in text.split(",") if n]


def parse(argv=None):
    p = argparse.ArgumentParser(description="Trains on the table of trainer/metadata.py")
    p.add_argument("--train-files", required=True, help="CSV files, local or gs://, by commas")
    p.add_argument("--eval-files", required=True, help="the same, held out")
    p.add_argument("--job-dir", default="runs/taxi-pytorch", help="where the model goes")
    p.add_argument("--num-epochs", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--learning-rate", type=float, default=0.002)
    p.add_argument("--hidden-units", type=sizes, default=[64, 32], help="such as 64,32")
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args(argv)


if __name__ == "__main__":
    experiment.run(parse())
