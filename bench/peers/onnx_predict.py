"""bench/peers/onnx_predict.py MODEL.onnx IMAGES ROUNDS - onnxruntime's side of bench/predict.py

One session, one thread (more cost at this size), the same images, each call timed alone. The row is
given as the session's own bound input, so that no Python conversion is timed. Prints median and
99th percentile in microseconds and the class of the first image.
"""
import sys
import time

import numpy as np
import onnxruntime as ort


def main(model, images, rounds):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    given, wanted = session.get_inputs()[0], session.get_outputs()[-1]
    pixels = np.fromfile(images, np.uint8, 64 * 784, offset=16).reshape(64, 1, 1, 28, 28)
    if given.type == "tensor(uint8)":
        rows = pixels
    else:
        rows = ((pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.5)).astype(np.float32)
    shape = [d if isinstance(d, int) and d > 0 else 1 for d in given.shape]
    rows = [np.ascontiguousarray(r).reshape(shape) for r in rows]

    bindings = []
    for r in rows:
        b = session.io_binding()
        b.bind_ortvalue_input(given.name, ort.OrtValue.ortvalue_from_numpy(r))
        b.bind_output(wanted.name, "cpu")
        bindings.append(b)
    run, clock = session.run_with_iobinding, time.perf_counter
    times = []
    for i in range(rounds + rounds // 10):
        b = bindings[i % 64]
        start = clock()
        run(b)
        times.append(clock() - start)
    times = np.sort(np.array(times[rounds // 10:])) * 1e6
    run(bindings[0])
    best = int(np.argmax(bindings[0].copy_outputs_to_cpu()[0]))
    print(times[len(times) // 2], times[len(times) * 99 // 100], best)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
