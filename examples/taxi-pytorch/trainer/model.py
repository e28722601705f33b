"""A linear model and a deep one side by side: their outputs are added."""
import torch
from torch import nn

from trainer import metadata


class DNNLinearCombined(nn.Module):
    """Wide: a weight for each number and each id. Deep: numbers and embeddings through layers."""

    def __init__(self, n_numeric, sizes, hidden, n_out, dropout):
        super().__init__()
        self.wide = nn.Linear(n_numeric, n_out)
        self.wide_ids = nn.ModuleList(nn.Embedding(n, n_out) for n in sizes)
        self.embeddings = nn.ModuleList(nn.Embedding(n, metadata.EMBEDDING_SIZE) for n in sizes)
        layers, width = [], n_numeric + len(sizes) * metadata.EMBEDDING_SIZE
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU(), nn.Dropout(dropout)]
            width = units
        self.deep = nn.Sequential(*layers, nn.Linear(width, n_out))
        for embedding in self.wide_ids:
            nn.init.zeros_(embedding.weight)

    def forward(self, numbers, ids):
        """(rows, numeric), (rows, categorical) -> (rows, outputs)."""
        wide = self.wide(numbers) + sum(e(ids[:, i]) for i, e in enumerate(self.wide_ids))
        embedded = [e(ids[:, i]) for i, e in enumerate(self.embeddings)]
        return wide + self.deep(torch.cat([numbers, *embedded], 1))


def create_classifier(features, hidden, dropout, device):
    return DNNLinearCombined(len(features.numeric), features.sizes(), hidden,
                             len(metadata.TARGET_LABELS), dropout).to(device)


def create_regressor(features, hidden, dropout, device):
    return DNNLinearCombined(len(features.numeric), features.sizes(), hidden, 1, dropout).to(device)


def create(features, hidden, dropout, device):
    """What metadata.TASK_TYPE asks for: the model and its loss."""
    if metadata.TASK_TYPE == "classification":
        return create_classifier(features, hidden, dropout, device), nn.CrossEntropyLoss()
    mse = nn.MSELoss()
    return (create_regressor(features, hidden, dropout, device),
            lambda outputs, wanted: mse(outputs[:, 0], wanted))
