"""Step one: the data set, and the loaders of its two parts as pickles for the next step."""
import argparse
import gzip
import pickle
import shutil
from pathlib import Path

from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms


def unpack(folder):
    """What came packed is unpacked beside itself; torchvision then has nothing to download."""
    for packed in folder.glob("*.gz"):
        plain = packed.with_suffix("")
        if not plain.exists():
            with gzip.open(packed) as source, open(plain, "wb") as out:
                shutil.copyfileobj(source, out)


def loader(folder, train, batch, workers, limit):
    to_tensor = transforms.Compose([transforms.ToTensor(),
                                    transforms.Normalize((0.1307,), (0.3081,))])
    images = datasets.FashionMNIST(folder, train=train, download=True, transform=to_tensor)
    if 0 < limit < len(images):
        images = Subset(images, range(limit))
    return DataLoader(images, batch_size=batch, shuffle=train, num_workers=workers)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset_root_dir", default="./datasets")
    parser.add_argument("--dataset_name", default="fashion-mnist")
    parser.add_argument("--train_batch_size", type=int, default=64)
    parser.add_argument("--test_batch_size", type=int, default=64)
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--limit", type=int, default=0, help="images of each part; 0: all")
    args = parser.parse_args()

    folder = Path(args.dataset_root_dir) / args.dataset_name
    folder.mkdir(parents=True, exist_ok=True)
    unpack(folder / "FashionMNIST/raw")
    for part, batch in (("train", args.train_batch_size), ("test", args.test_batch_size)):
        made = loader(str(folder), part == "train", batch, args.num_workers, args.limit)
        (folder / f"{part}.pickle").write_bytes(pickle.dumps(made))
        print(f"{part}: {len(made.dataset)} images in batches of {batch}")


if __name__ == "__main__":
    main()
