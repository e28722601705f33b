/* spec/keys.c - the vocabulary: one row for each key that a spec may hold */
#include "spec/keys.h"

#include <stdio.h>
#include <string.h>

#include "base/near.h"

/* Sizes that become an int, and counts that need not. */
#define FROM(a) .min = (a), .max = 2147483647.0
#define COUNT_FROM(a) .min = (a), .max = 9.2e18
#define NUMBER_FROM(a) .min = (a), .max = 1e300
#define WITHIN(a, b) .min = (a), .max = (b)
#define ANY_NUMBER .min = -1e300, .max = 1e300

#define REQUIRED KEY_REQUIRED
#define HEAD KEY_HEAD
#define SHORT KEY_SHORT
#define ALONE KEY_ALONE
#define OPEN KEY_OPEN
#define NAME KEY_NAME
#define BELOW KEY_BELOW
#define NATIVE KEY_NATIVE

#define TABULAR "csv|json|tfrecord"

const char key_metrics[] = "loss|accuracy|precision|recall|auc|mae|rmse|r2";

static const struct key keys[] = {
    /* the top level */
    { "", "name", KEY_TEXT, NAME, .why = "the job's name; by default the folder's or the file's" },
    { "", "data", KEY_MAP, NATIVE, .of = "data", .why = "what to learn from" },
    { "", "model", KEY_MODEL, NATIVE, .of = "model",
      .why = "a list of layers, a graph, or wide_and_deep" },
    { "", "loss", KEY_MAP, NATIVE, .of = "loss", .why = "what training makes small" },
    { "", "optimizer", KEY_MAP, NATIVE, .of = "optimizer",
      .why = "how a gradient changes the weights; wide_and_deep may have one for each part" },
    { "", "clip", KEY_MAP, NATIVE, .of = "clip", .why = "a limit on gradients" },
    { "", "schedule", KEY_MAP, NATIVE, .of = "schedule", .why = "how the learning rate changes" },
    { "", "metrics", KEY_METRICS, NATIVE, .value = "[]",
      .why = "what a test reports beside the loss: accuracy, top_5 (any top_K), precision, recall, "
             "auc, mae, rmse, r2" },
    { "", "batch", KEY_WHOLE, NATIVE, FROM(1), .value = "32", .why = "samples in a step" },
    { "", "epochs", KEY_WHOLE, NATIVE, FROM(1), .value = "1",
      .why = "passes over the training rows" },
    { "", "test", KEY_MAP, NATIVE, .of = "test", .value = "{}", .why = "when to test" },
    { "", "stop", KEY_STOP, NATIVE, .of = "stop", .why = "when to stop before the last epoch" },
    { "", "checkpoint", KEY_MAP, NATIVE, .of = "checkpoint", .value = "{}",
      .why = "when to save the whole state" },
    { "", "seed", KEY_WHOLE, NATIVE, COUNT_FROM(0), .value = "1",
      .why = "of the initial weights, the sample order and drop-out" },
    { "", "shards", KEY_WHOLE, NATIVE, WITHIN(1, 4096),
      .why = "fixed parts of a batch, the same for any number of workers; by default the largest "
             "power of two up to 8 and the batch" },
    { "", "init", KEY_PATH, NATIVE, .why = "initial weights by name (safetensors)" },
    { "", "order", KEY_PATH, NATIVE,
      .why = "sample order: row numbers as uint32, epoch after epoch" },
    { "", "threads", KEY_WHOLE, NATIVE, WITHIN(0, 4096), .value = "0",
      .why = "0: all cores that help" },
    { "", "workers", KEY_RANGE, WITHIN(1, 4096), .value = "1",
      .why = "how many processes share the job: 2, or least..most" },
    { "", "resources", KEY_MAP, .of = "resources", .why = "what each worker needs" },
    { "", "run_on", KEY_WORD, .of = "local", .value = "local",
      .why = "where workers run" },
    { "", "python", KEY_MAP, .of = "python",
      .why = "a Python program of your own, in place of data ... epochs" },
    { "", "command", KEY_TEXTS, .why = "any program of your own, in place of data ... epochs" },
    { "", "image", KEY_TEXT, .why = "container image of a program of your own" },
    { "", "network", KEY_WORD, .of = "outside|none|host",
      .why = "what a job of the server reaches: the world outside and the server (the default), "
             "nothing, or all that its machine reaches" },

    { "python", "package", KEY_PATH, .value = ".", .why = "folder or archive with the package" },
    { "python", "module", KEY_TEXT, REQUIRED | SHORT, .why = "what python -m runs" },
    { "python", "args", KEY_TEXTS, .value = "[]", .why = "arguments of the module" },
    { "resources", "cpu", KEY_NUMBER, OPEN, NUMBER_FROM(0), .value = "1", .why = "cores" },
    { "resources", "memory", KEY_SIZE, .why = "memory: 512Mi, 1Gi" },
    { "resources", "gpu", KEY_WHOLE, FROM(0), .why = "accelerators" },

    /* data */
    { "data", "train", KEY_MAP, REQUIRED, .of = "source", .why = "the training rows" },
    { "data", "test", KEY_MAP, .of = "source", .why = "the test rows" },
    { "data", "split", KEY_MAP, .of = "split", .why = "takes test rows out of the training rows" },
    { "data", "scale", KEY_MAP, .of = "scale", .when = "idx",
      .why = "images: (byte / 255 - mean) / std" },
    { "data", "labels", KEY_TEXTS, .why = "names of the classes; for a target that is text, also "
      "the words it may be" },
    { "data", "header", KEY_HEADER, .when = "csv", .value = "true",
      .why = "whether the first line names the columns, or the names" },
    { "data", "delimiter", KEY_TEXT, .when = "csv", .value = "\",\"",
      .why = "the character between fields" },
    { "data", "skip", KEY_WHOLE, FROM(0), .when = "csv", .value = "0",
      .why = "lines to leave out before the header" },
    { "data", "missing", KEY_TEXTS, .when = TABULAR, .value = "[\"\", NA]",
      .why = "texts that mean \"no value\"" },
    { "data", "on_error", KEY_WORD, .of = "stop|skip|fill", .value = "stop",
      .why = "what to do about a row that cannot be read: stop, skip and count it, or fill the "
             "value in (mean, or the unknown id)" },
    { "data", "stream", KEY_BOOL, .when = TABULAR, .value = "false",
      .why = "true: rows are read as they are needed and never all in memory; wants shuffle: N or "
             "false" },
    { "data", "shuffle", KEY_SHUFFLE, COUNT_FROM(1), .value = "true",
      .why = "true: the whole epoch; N: each block of N rows; false: file order" },
    { "data", "task", KEY_WORD, .of = "classification|regression", .when = TABULAR,
      .why = "by default told by the target's values" },
    { "data", "features", KEY_NAMED, .of = "feature", .when = TABULAR,
      .why = "columns to learn from; by default every column but the target, numeric" },
    { "data", "scale_over", KEY_WORD, .of = "train|all", .when = TABULAR, .value = "train",
      .why = "rows that statistics are computed over" },
    { "data", "derived", KEY_TEXT_MAP, .when = TABULAR,
      .why = "columns computed from others: + - * / %, comparisons, && || !, min max abs log exp "
             "sqrt floor" },
    { "data", "target", KEY_TEXT, REQUIRED, .when = TABULAR, .why = "the column to predict" },
    { "data", "weight", KEY_TEXT, .when = TABULAR, .why = "column with the weight of each row" },

    { "source", "idx", KEY_PATHS, HEAD, .count = 2, .why = "images and labels, as MNIST has them" },
    { "source", "csv", KEY_PATHS, HEAD, .why = "a CSV file, or several with the same columns" },
    { "source", "json", KEY_PATHS, HEAD, .why = "JSON lines" },
    { "source", "tfrecord", KEY_PATHS, HEAD, .why = "TFRecord files of tf.example" },
    { "source", "rows", KEY_ROWS, COUNT_FROM(0), .why = "first..end: these rows only, the end not "
      "included; 404.. goes to the last" },
    { "source", "limit", KEY_WHOLE, COUNT_FROM(1), .why = "the first so many of them" },

    { "split", "test", KEY_NUMBER, REQUIRED | SHORT | OPEN | BELOW, WITHIN(0, 1),
      .why = "share of the rows that become the test set" },
    { "split", "by", KEY_WORD, .of = "range|random", .value = "range",
      .why = "range: the last rows; random: by seed and row number" },
    { "scale", "mean", KEY_NUMBERS, ANY_NUMBER, .value = "0", .why = "one for all channels, or a "
      "list" },
    { "scale", "std", KEY_NUMBERS, OPEN, NUMBER_FROM(0), .value = "1", .why = "the same" },

    { "feature", "numeric", KEY_MAP, HEAD, .of = "numeric", .why = "a number" },
    { "feature", "vocabulary", KEY_VOCABULARY, HEAD,
      .why = "one of these texts; auto: the training rows' own; any other is the unknown id" },
    { "feature", "identity", KEY_WHOLE, HEAD, FROM(1), .why = "a whole number from 0 to N - 1" },
    { "feature", "hash", KEY_WHOLE, HEAD, FROM(1), .why = "any text, hashed to N buckets" },
    { "feature", "bucketize", KEY_TEXT, HEAD, .why = "the bucket that this column's number is in" },
    { "feature", "boundaries", KEY_NUMBERS, ANY_NUMBER, .why = "of the buckets, ascending" },
    { "feature", "cross", KEY_GROUP, HEAD,
      .why = "these categorical features together, hashed; they stand before it" },
    { "feature", "buckets", KEY_WHOLE, FROM(1), .why = "of a cross; by default 1000" },
    { "numeric", "scale", KEY_WORD, SHORT, .of = "standard|range|none", .value = "standard",
      .why = "standard: (x - mean) / deviation; range: (x - mean) / (max - min)" },
    { "numeric", "mean", KEY_NUMBER, ANY_NUMBER, .why = "known beforehand, with variance" },
    { "numeric", "variance", KEY_NUMBER, OPEN, NUMBER_FROM(0),
      .why = "known beforehand, with mean" },
    { "numeric", "min", KEY_NUMBER, ANY_NUMBER, .why = "known beforehand, for scale: range" },
    { "numeric", "max", KEY_NUMBER, ANY_NUMBER, .why = "known beforehand, for scale: range" },
    { "numeric", "log", KEY_BOOL, .value = "false", .why = "log(1 + x) before scaling" },

    /* model */
    { "model", "nodes", KEY_NAMED, HEAD, .of = "node", .why = "a graph: layers by name" },
    { "model", "output", KEY_TEXT, .why = "the node that the loss sees; by default the last" },
    { "model", "wide_and_deep", KEY_MAP, HEAD, .of = "wide_and_deep",
      .why = "a linear model and a network, added" },
    { "wide_and_deep", "hidden", KEY_WHOLES, SHORT, FROM(1), .value = "[64, 32]",
      .why = "widths of the deep part's layers" },
    { "wide_and_deep", "embedding", KEY_WHOLE, FROM(1), .value = "8",
      .why = "dimensions of each categorical feature in the deep part" },
    { "wide_and_deep", "cross", KEY_GROUPS, .value = "[]",
      .why = "features that the wide part sees together" },
    { "wide_and_deep", "cross_buckets", KEY_WHOLE, FROM(1), .value = "1000",
      .why = "hash buckets of each cross" },
    { "wide_and_deep", "dropout", KEY_NUMBER, WITHIN(0, 1), .value = "0",
      .why = "after each hidden layer" },

    { "layer", "conv2d", KEY_MAP, HEAD, .of = "conv2d", .why = "convolution" },
    { "layer", "linear", KEY_MAP, HEAD, .of = "linear", .why = "fully connected" },
    { "layer", "maxpool", KEY_MAP, HEAD, .of = "maxpool", .why = "largest value of each window" },
    { "layer", "avgpool", KEY_MAP, HEAD, .of = "avgpool", .why = "mean of each window" },
    { "layer", "batchnorm", KEY_MAP, HEAD, .of = "batchnorm", .why = "over the whole batch" },
    { "layer", "layernorm", KEY_MAP, HEAD, .of = "layernorm", .why = "over a sample's features" },
    { "layer", "relu", KEY_MAP, HEAD, .of = "relu", .why = "max(x, 0)" },
    { "layer", "leaky_relu", KEY_MAP, HEAD, .of = "leaky_relu", .why = "x or slope x" },
    { "layer", "gelu", KEY_MAP, HEAD, .of = "gelu", .why = "x times the normal distribution's "
      "share below x" },
    { "layer", "sigmoid", KEY_MAP, HEAD, .of = "sigmoid", .why = "1 / (1 + exp(-x))" },
    { "layer", "tanh", KEY_MAP, HEAD, .of = "tanh", .why = "hyperbolic tangent" },
    { "layer", "softmax", KEY_MAP, HEAD, .of = "softmax", .why = "shares that add to one" },
    { "layer", "log_softmax", KEY_MAP, HEAD, .of = "log_softmax", .why = "their logarithms" },
    { "layer", "dropout", KEY_MAP, HEAD, .of = "dropout", .why = "zeroes at random in training" },
    { "layer", "embedding", KEY_MAP, HEAD, .of = "embedding", .why = "a row of a table, by id" },
    { "layer", "flatten", KEY_MAP, HEAD, .of = "flatten", .why = "an image as one vector" },
    { "layer", "identity", KEY_MAP, HEAD, .of = "identity", .why = "the input, unchanged" },
    { "node", "concat", KEY_MAP, HEAD, .of = "concat", .why = "inputs side by side" },
    { "node", "add", KEY_MAP, HEAD, .of = "add", .why = "inputs added" },
    { "node", "from", KEY_TEXTS, .why = "the nodes, \"input\" or data fields it reads; by default "
      "the node before" },

    { "conv2d", "out", KEY_WHOLE, REQUIRED, FROM(1), .why = "output channels" },
    { "conv2d", "kernel", KEY_PAIR, REQUIRED, FROM(1), .why = "window" },
    { "conv2d", "stride", KEY_PAIR, FROM(1), .value = "1", .why = "step of the window" },
    { "conv2d", "padding", KEY_PAIR, FROM(0), .value = "0", .why = "zeroes around the image" },
    { "conv2d", "dilation", KEY_PAIR, FROM(1), .value = "1",
      .why = "distance of the window's taps" },
    { "conv2d", "groups", KEY_WHOLE, FROM(1), .value = "1", .why = "channels in separate groups" },
    { "conv2d", "bias", KEY_BOOL, .value = "true", .why = "adds a number per channel" },
    { "conv2d", "name", KEY_TEXT, NAME, .value = "conv", .why = "of its tensors" },
    { "linear", "out", KEY_WHOLE, REQUIRED | SHORT, FROM(1), .why = "output width" },
    { "linear", "bias", KEY_BOOL, .value = "true", .why = "adds a number per output" },
    { "linear", "name", KEY_TEXT, NAME, .value = "fc", .why = "of its tensors" },
    { "maxpool", "kernel", KEY_PAIR, REQUIRED | SHORT, FROM(1), .why = "window" },
    { "maxpool", "stride", KEY_PAIR, FROM(1), .why = "step of the window; by default the window" },
    { "maxpool", "padding", KEY_PAIR, FROM(0), .value = "0", .why = "border that never wins" },
    { "avgpool", "kernel", KEY_PAIR, REQUIRED | SHORT, FROM(1), .why = "window" },
    { "avgpool", "stride", KEY_PAIR, FROM(1), .why = "step of the window; by default the window" },
    { "avgpool", "padding", KEY_PAIR, FROM(0), .value = "0", .why = "zeroes that count" },
    { "batchnorm", "eps", KEY_NUMBER, OPEN, NUMBER_FROM(0), .value = "1e-5",
      .why = "added to the variance" },
    { "batchnorm", "momentum", KEY_NUMBER, WITHIN(0, 1), .value = "0.1",
      .why = "share of the new batch in the running statistics" },
    { "batchnorm", "per_shard", KEY_BOOL, .value = "false",
      .why = "true: statistics of each shard alone" },
    { "batchnorm", "name", KEY_TEXT, NAME, .value = "bn", .why = "of its tensors" },
    { "layernorm", "eps", KEY_NUMBER, OPEN, NUMBER_FROM(0), .value = "1e-5",
      .why = "added to the variance" },
    { "layernorm", "name", KEY_TEXT, NAME, .value = "ln", .why = "of its tensors" },
    { "leaky_relu", "slope", KEY_NUMBER, SHORT, ANY_NUMBER, .value = "0.01", .why = "below zero" },
    { "gelu", "approximate", KEY_WORD, SHORT, .of = "none|tanh", .value = "none",
      .why = "none: erf; tanh: the older formula" },
    { "dropout", "p", KEY_NUMBER, SHORT, WITHIN(0, 1), .value = "0.5", .why = "share of zeroes" },
    { "embedding", "rows", KEY_WHOLE, REQUIRED, FROM(1), .why = "ids" },
    { "embedding", "dim", KEY_WHOLE, REQUIRED, FROM(1), .why = "width of a row" },
    { "embedding", "of", KEY_TEXT, .why = "the categorical feature it reads" },
    { "embedding", "name", KEY_TEXT, NAME, .value = "emb", .why = "of its tensors" },

    /* loss */
    { "loss", "squared_error", KEY_MAP, HEAD, .of = "squared_error", .why = "mean of squares" },
    { "loss", "l1", KEY_MAP, HEAD, .of = "l1", .why = "mean of absolute differences" },
    { "loss", "huber", KEY_MAP, HEAD, .of = "huber", .why = "squares near zero, absolute beyond" },
    { "loss", "cross_entropy", KEY_MAP, HEAD, .of = "cross_entropy", .why = "of scores (logits)" },
    { "loss", "nll", KEY_MAP, HEAD, .of = "nll", .why = "of log_softmax" },
    { "loss", "bce_with_logits", KEY_MAP, HEAD, .of = "bce_with_logits", .why = "two classes, one "
      "score" },
    { "huber", "delta", KEY_NUMBER, SHORT | OPEN, NUMBER_FROM(0), .value = "1", .why = "where the "
      "square ends" },

    /* optimizer */
    { "optimizer", "sgd", KEY_MAP, HEAD, .of = "sgd", .why = "as PyTorch's SGD" },
    { "optimizer", "adam", KEY_MAP, HEAD, .of = "adam", .why = "as PyTorch's Adam" },
    { "optimizer", "adamw", KEY_MAP, HEAD, .of = "adamw", .why = "as PyTorch's AdamW" },
    { "optimizer", "adagrad", KEY_MAP, HEAD, .of = "adagrad", .why = "as PyTorch's Adagrad" },
    { "optimizer", "rmsprop", KEY_MAP, HEAD, .of = "rmsprop", .why = "as PyTorch's RMSprop" },
    { "optimizer", "ftrl", KEY_MAP, HEAD, .of = "ftrl", .why = "as TensorFlow's FTRL" },
    { "optimizer", "wide", KEY_MAP, ALONE, .of = "optimizer", .why = "wide_and_deep: of the wide "
      "part" },
    { "optimizer", "deep", KEY_MAP, ALONE, .of = "optimizer", .why = "wide_and_deep: of the deep "
      "part" },
#define LR(map, text)                                                                           \
    { map, "lr", KEY_NUMBER, SHORT, NUMBER_FROM(0), .value = text, .why = "learning rate" }
#define DECAY(map, text)                                                                        \
    { map, "weight_decay", KEY_NUMBER, NUMBER_FROM(0), .value = text,                           \
      .why = "pulls weights to zero" }
#define EPS(map, text)                                                                          \
    { map, "eps", KEY_NUMBER, NUMBER_FROM(0), .value = text, .why = "added to the denominator" }
    LR("sgd", "0.001"),
    { "sgd", "momentum", KEY_NUMBER, NUMBER_FROM(0), .value = "0", .why = "share of the last "
      "update that is kept" },
    { "sgd", "nesterov", KEY_BOOL, .value = "false", .why = "looks ahead; wants momentum" },
    DECAY("sgd", "0"),
    LR("adam", "0.001"),
    { "adam", "betas", KEY_NUMBERS, BELOW, WITHIN(0, 1), .count = 2, .value = "[0.9, 0.999]",
      .why = "share kept of the mean and of the square" },
    EPS("adam", "1e-8"),
    DECAY("adam", "0"),
    LR("adamw", "0.001"),
    { "adamw", "betas", KEY_NUMBERS, BELOW, WITHIN(0, 1), .count = 2, .value = "[0.9, 0.999]",
      .why = "share kept of the mean and of the square" },
    EPS("adamw", "1e-8"),
    DECAY("adamw", "0.01"),
    LR("adagrad", "0.01"),
    { "adagrad", "lr_decay", KEY_NUMBER, NUMBER_FROM(0), .value = "0", .why = "lr / (1 + (t - 1) "
      "lr_decay)" },
    EPS("adagrad", "1e-10"),
    { "adagrad", "initial_accumulator", KEY_NUMBER, NUMBER_FROM(0), .value = "0",
      .why = "what the sum of squares starts from" },
    DECAY("adagrad", "0"),
    LR("rmsprop", "0.01"),
    { "rmsprop", "alpha", KEY_NUMBER, WITHIN(0, 1), .value = "0.99", .why = "share kept of the "
      "square" },
    EPS("rmsprop", "1e-8"),
    { "rmsprop", "momentum", KEY_NUMBER, NUMBER_FROM(0), .value = "0", .why = "share of the last "
      "update that is kept" },
    { "rmsprop", "centered", KEY_BOOL, .value = "false", .why = "divides by the deviation" },
    DECAY("rmsprop", "0"),
    LR("ftrl", "0.001"),
    { "ftrl", "l1", KEY_NUMBER, NUMBER_FROM(0), .value = "0", .why = "makes weights zero" },
    { "ftrl", "l2", KEY_NUMBER, NUMBER_FROM(0), .value = "0", .why = "makes weights small" },
    { "ftrl", "lr_power", KEY_NUMBER, WITHIN(-1e300, 0), .value = "-0.5", .why = "how fast the "
      "rate falls" },
    { "ftrl", "initial_accumulator", KEY_NUMBER, NUMBER_FROM(0), .value = "0.1",
      .why = "what the sum of squares starts from" },

    { "clip", "norm", KEY_NUMBER, HEAD | OPEN, NUMBER_FROM(0), .why = "of all gradients together" },
    { "clip", "value", KEY_NUMBER, HEAD | OPEN, NUMBER_FROM(0), .why = "of each gradient" },

    { "schedule", "step", KEY_MAP, HEAD, .of = "step", .why = "falls at every so many epochs" },
    { "schedule", "cosine", KEY_MAP, HEAD, .of = "cosine", .why = "falls along half a wave" },
    { "schedule", "plateau", KEY_MAP, HEAD, .of = "plateau", .why = "falls when a metric rests" },
    { "schedule", "warmup", KEY_MAP, ALONE, .of = "warmup", .why = "rises to the rate first" },
    { "step", "every", KEY_WHOLE, REQUIRED | SHORT, FROM(1), .why = "epochs" },
    { "step", "gamma", KEY_NUMBER, OPEN, NUMBER_FROM(0), .value = "0.1", .why = "factor" },
    { "cosine", "epochs", KEY_WHOLE, SHORT, FROM(1), .why = "length; by default all epochs" },
    { "cosine", "min", KEY_NUMBER, NUMBER_FROM(0), .value = "0",
      .why = "learning rate at the end" },
    { "plateau", "patience", KEY_WHOLE, SHORT, FROM(0), .value = "10", .why = "tests without "
      "improvement that are borne" },
    { "plateau", "factor", KEY_NUMBER, OPEN | BELOW, WITHIN(0, 1), .value = "0.1",
      .why = "factor" },
    { "plateau", "metric", KEY_MONITOR, .value = "test_loss", .why = "what should improve" },
    { "warmup", "steps", KEY_WHOLE, REQUIRED | SHORT, FROM(1), .why = "length" },

    { "test", "every", KEY_EVERY, SHORT, .value = "1 epoch", .why = "\"10 steps\", \"1 epoch\", "
      "never" },
    { "stop", "patience", KEY_WHOLE, FROM(1), .why = "tests without improvement of test_loss; any "
      "other key is a metric of the test: {test_loss: {below: 0.2}}" },
    { "rule", "below", KEY_NUMBER, ANY_NUMBER, .why = "stops when the metric is smaller" },
    { "rule", "above", KEY_NUMBER, ANY_NUMBER, .why = "stops when the metric is larger" },
    { "checkpoint", "every", KEY_WHEN, SHORT, .value = "1 epoch", .why = "\"100 steps\", \"30 "
      "seconds\", \"1 epoch\", never; the result does not depend on it" },
    { "checkpoint", "keep", KEY_WHOLE, FROM(1), .value = "2", .why = "older ones are removed" },
    { "checkpoint", "best", KEY_MONITOR, .why = "keeps the best one by this metric, or none; by "
      "default test_loss where there are tests, and saves or stop.patience" },
};

enum { KEYS = sizeof keys / sizeof keys[0] };

const struct key *key_table(int *out_n)
{
    *out_n = KEYS;
    return keys;
}

/* The table is walked for every key of a spec; most rows differ in the first letter. */
static int same(const char *a, const char *b)
{
    return a[0] == b[0] && strcmp(a, b) == 0;
}

/* A node of a graph has a layer's keys and its own. */
static int in_map(const struct key *k, const char *map)
{
    return same(k->map, map) || (same(k->map, "layer") && same(map, "node"));
}

const struct key *key_find(const char *map, const char *name)
{
    for (int i = 0; i < KEYS; i++)
        if (same(keys[i].name, name) && in_map(&keys[i], map))
            return &keys[i];
    return NULL;
}

const struct key *key_next(const char *map, const struct key *k)
{
    for (k = k ? k + 1 : keys; k < keys + KEYS; k++)
        if (in_map(k, map))
            return k;
    return NULL;
}

const struct key *key_flagged(const char *map, unsigned flags)
{
    for (int i = 0; i < KEYS; i++)
        if ((keys[i].flags & flags) && in_map(&keys[i], map))
            return &keys[i];
    return NULL;
}

int key_is_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = list; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, word, n) == 0 && (at[n] == '|' || !at[n]))
            return n > 0;
    }
    return 0;
}

const char *key_near_word(const char *list, const char *word, char *buf, size_t size)
{
    struct near near = near_to(word);
    const char *begins = NULL;
    int n_begin = 0;

    snprintf(buf, size, "%s", list);
    for (char *at = buf, *end; at; at = end) {
        end = strchr(at, '|');
        if (end)
            *end++ = 0;
        near_try(&near, at);
        if (strlen(word) >= 3 && strncmp(at, word, strlen(word)) == 0 && !n_begin++)
            begins = at;
    }
    return n_begin == 1 ? begins : near.word;
}

int key_is_name(const char *text)
{
    size_t n = strlen(text);
    const char *letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

    return n > 0 && n <= 63 && text[0] != '.' && text[0] != '-' && strspn(text, letters) == n;
}

/* What PyTorch, Keras and others call the same thing. */
static const struct {
    const char *theirs, *ours;
} synonyms[] = {
    { "acc", "accuracy" },              { "avg_pool2d", "avgpool" },
    { "batch_size", "batch" },          { "bce", "bce_with_logits" },
    { "categories", "vocabulary" },     { "class_names", "labels" },
    { "conv", "conv2d" },               { "dataset", "data" },
    { "dense", "linear" },              { "embedding_dim", "dim" },
    { "fc", "linear" },                 { "hash_bucket", "hash" },
    { "iterations", "steps" },          { "kernel_size", "kernel" },
    { "layers", "model" },              { "learning_rate", "lr" },
    { "lr_scheduler", "schedule" },     { "max_pool2d", "maxpool" },
    { "mean_squared_error", "squared_error" }, { "mse", "squared_error" },
    { "mse_loss", "squared_error" },    { "mae", "l1" },
    { "negative_slope", "slope" },      { "net", "model" },
    { "nll_loss", "nll" },              { "num_embeddings", "rows" },
    { "num_epochs", "epochs" },         { "optim", "optimizer" },
    { "out_channels", "out" },          { "out_features", "out" },
    { "over", "above" },                { "under", "below" },
    { "rate", "p" },                    { "scheduler", "schedule" },
    { "smooth_l1", "huber" },           { "std", "variance" },
    { "units", "out" },                 { "val", "test" },
    { "valid", "test" },                { "validation", "test" },
    { "width", "out" },
};

const char *key_near(const char *map, const char *word)
{
    struct near near = near_to(word);
    const struct key *begins = NULL;
    int n_begin = 0;

    for (size_t i = 0; i < sizeof synonyms / sizeof synonyms[0]; i++)
        if (strcmp(synonyms[i].theirs, word) == 0 && key_find(map, synonyms[i].ours))
            return synonyms[i].ours;
    for (const struct key *k = key_next(map, NULL); k; k = key_next(map, k)) {
        near_try(&near, k->name);
        if (strlen(word) >= 3 && strncmp(k->name, word, strlen(word)) == 0 && !n_begin++)
            begins = k;
    }
    return n_begin == 1 ? begins->name : near.word;
}

const char *key_map_words(const char *map)
{
    static const char *const words[][2] = {
        { "source", "data.train" },     { "split", "data.split" },
        { "scale", "data.scale" },      { "feature", "a feature" },
        { "layer", "a layer" },         { "node", "a node of a graph" },
        { "rule", "a stop rule" },      { "", "a spec" },
    };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i][0], map) == 0)
            return words[i][1];
    return map;
}

const char *key_home(const char *name)
{
    for (int i = 0; i < KEYS; i++)
        if (strcmp(keys[i].name, name) == 0) {
            if (!*keys[i].map)
                return "the top level";
            return key_find("optimizer", keys[i].map) ? "the optimizer"
                                                      : key_map_words(keys[i].map);
        }
    return NULL;
}

/* " from 1", " above 0", " from 0 to 1", or nothing where any number will do. */
static void range_words(const struct key *k, char *out, size_t size)
{
    int low = k->min > -1e300, high = k->max < 1e300 && k->max != 2147483647.0 && k->max < 9e18;

    out[0] = 0;
    if (low && high)
        snprintf(out, size, " %s %.10g %s%s %.10g", k->flags & KEY_OPEN ? "above" : "from", k->min,
                 k->flags & (KEY_OPEN | KEY_BELOW) ? "and " : "",
                 k->flags & KEY_BELOW ? "below" : k->flags & KEY_OPEN ? "up to" : "to", k->max);
    else if (low)
        snprintf(out, size, k->flags & KEY_OPEN ? " above %.10g" : " from %.10g", k->min);
    else if (high)
        snprintf(out, size, " up to %.10g", k->max);
}

void key_word_list(const char *of, char *out, size_t size)
{
    size_t at = 0;

    out[0] = 0;
    for (const char *c = of; *c && at + 6 < size; c++) {
        const char *glue = strchr(c + 1, '|') ? ", " : " or ";
        at += (size_t)snprintf(out + at, size - at, *c == '|' ? glue : "%c", *c);
    }
}

void key_expected(const struct key *k, char *out, size_t size)
{
    static const char *const words[] = {
#define X(name, text) [KEY_##name] = text,
        KEY_KINDS(X)
#undef X
    };
    const char *text = words[k->kind], *mark = strchr(text, '#');
    char range[80];

    range_words(k, range, sizeof range);
    if (k->kind == KEY_WORD)
        key_word_list(k->of, out, size);
    else if (k->count)
        snprintf(out, size, "a list of %d %s%s", k->count,
                 k->kind == KEY_PATHS ? "paths" : "numbers", k->kind == KEY_PATHS ? "" : range);
    else if (mark)
        snprintf(out, size, "%.*s%s%s", (int)(mark - text), text, range, mark + 1);
    else
        snprintf(out, size, "%s", text);
}
