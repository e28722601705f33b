"""One experiment: trains, evaluates after each epoch, exports the model at the end."""
import io
import json

import torch

from trainer import inputs, metadata, model


def train(net, loss_fn, optimizer, batches):
    """One epoch; the mean loss of its rows."""
    net.train()
    total = rows = 0
    for numbers, ids, wanted in batches:
        optimizer.zero_grad()
        loss = loss_fn(net(numbers, ids), wanted)
        loss.backward()
        optimizer.step()
        total, rows = total + loss.item() * len(wanted), rows + len(wanted)
    return total / rows


def evaluate(net, loss_fn, batches):
    """{"loss", and "accuracy" or "rmse"} over the rows."""
    net.eval()
    total = score = rows = 0
    with torch.no_grad():
        for numbers, ids, wanted in batches:
            outputs = net(numbers, ids)
            total += loss_fn(outputs, wanted).item() * len(wanted)
            if metadata.TASK_TYPE == "classification":
                score += (outputs.argmax(1) == wanted).sum().item()
            else:
                score += ((outputs[:, 0] - wanted) ** 2).sum().item()
            rows += len(wanted)
    if metadata.TASK_TYPE == "classification":
        return {"loss": total / rows, "accuracy": score / rows}
    return {"loss": total / rows, "rmse": (score / rows) ** 0.5}


def export(net, features, args, result):
    """JOB_DIR/model/model.pt (weights, features, shape) and JOB_DIR/model/result.json."""
    out = io.BytesIO()
    torch.save({"weights": net.state_dict(), "features": features.as_dict(),
                "hidden": args.hidden_units, "task": metadata.TASK_TYPE}, out)
    folder = args.job_dir.rstrip("/") + "/model"
    inputs.write_bytes(f"{folder}/model.pt", out.getvalue())
    inputs.write_bytes(f"{folder}/result.json", json.dumps(result, indent=1).encode())
    print(f"exported to {folder}/model.pt", flush=True)


def run(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    batches, features = inputs.load_data(args.train_files, args.batch_size, shuffle=True,
                                         device=device)
    held_out, _ = inputs.load_data(args.eval_files, 1024, features, device=device)
    net, loss_fn = model.create(features, args.hidden_units, args.dropout, device)
    optimizer = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
    print(f"{metadata.TASK_TYPE} on {device}: {len(batches.dataset)} rows to train on, "
          f"{len(held_out.dataset)} to evaluate", flush=True)

    result = {}
    for epoch in range(1, args.num_epochs + 1):
        loss = train(net, loss_fn, optimizer, batches)
        result = evaluate(net, loss_fn, held_out)
        said = "  ".join(f"eval {name} {value:.4f}" for name, value in result.items())
        print(f"epoch {epoch}  loss {loss:.4f}  {said}", flush=True)
    export(net, features, args, result)
    return result
