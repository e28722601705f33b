"""The pipeline: a volume, a step that fills it, a step that trains on it. For kfp 1.8."""
from kfp import compiler, dsl


def preprocess_op(image, volume, root, name, limit):
    return dsl.ContainerOp(
        name="preprocessing", image=image, command=["python", "preprocess.py"],
        arguments=["--dataset_root_dir", root, "--dataset_name", name, "--limit", limit],
        container_kwargs={"image_pull_policy": "IfNotPresent"},
        pvolumes={"/workspace": volume})


def train_op(image, volume, root, name, epochs):
    return dsl.ContainerOp(
        name="train", image=image, command=["python", "train.py"],
        arguments=["--dataset_root_dir", root, "--dataset_name", name, "--epochs", epochs],
        container_kwargs={"image_pull_policy": "IfNotPresent"},
        pvolumes={"/workspace": volume})


@dsl.pipeline(name="Fashion MNIST", description="Trains a small network on pictures of clothes.")
def fashion_pipeline(image: str = "registry.example/kubeflow-mnist:train",
                     dataset_root_dir: str = "/workspace/datasets",
                     dataset_name: str = "fashion-mnist", epochs: int = 20, limit: int = 0):
    claim = dsl.VolumeOp(name="create volume", resource_name="pipeline-pvc",
                         modes=dsl.VOLUME_MODE_RWO, size="3Gi")
    filled = preprocess_op(image, claim.volume, dataset_root_dir, dataset_name, limit)
    # What comes after `filled` mounts the same volume: that is how kfp orders the two.
    train_op(image, filled.pvolume, dataset_root_dir, dataset_name, epochs)


if __name__ == "__main__":
    compiler.Compiler().compile(fashion_pipeline, __file__ + ".tar.gz")
