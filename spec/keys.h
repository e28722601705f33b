/* spec/keys.h - the vocabulary: one row for each key that a spec may hold
 *
 * A key lives in a map, named by the row that leads there: the top level is "", `data` leads to
 * the map "data", every item of a list `model` is the map "layer". A map with HEAD keys is a
 * choice: exactly one of them is given (`{conv2d: {...}}`, or `relu` alone, which is short for
 * `{relu: {}}`). A map with a SHORT key may be written as that key's value alone: `linear: 120`.
 * Reading, the defaults, the error texts, --set and docs/spec.md are loops over this table.
 *
 * THE NORMAL FORM, which is all that data/, engine/ and runtime/ ever see. Every key of the table
 * that has a default is there; the rest is there when it was given. Numbers are reals, whole
 * numbers integers. Keys are in the order of the table, a user's own names in that of the file.
 *
 *   name        "fashion-lenet"
 *   data        {"train": SOURCE, "test": SOURCE, "split": {"test": 0.2, "by": "range"|"random"},
 *                "shuffle": true|false|500, "on_error": "stop"|"skip"|"fill",
 *                "labels": ["a", "b"], "scale": {"mean": [0.5], "std": [0.5]}, ...}
 *     SOURCE    {"idx": [IMAGES, LABELS]} or {"csv"|"json"|"tfrecord": [FILE, ...]}: always a
 *               list; beside it "rows": [0, 404] (half open; the end is null for "404..") and
 *               "limit": 2000. Paths are as written (see spec_resolve_path).
 *     csv alone "header": true|false|["a", "b"], "delimiter": ",", "skip": 0
 *     no image  "missing": ["", "NA"], "target": "tip", "weight": "w", "stream": false,
 *               "scale_over": "train"|"all",
 *               "task": "classification"|"regression" (absent: infer it),
 *               "derived": {"tip": "tips > 0.2 * fare"},
 *               "features": {"fare": FEATURE, ...} (absent: every other column is numeric)
 *     FEATURE   {"numeric": {"scale": "standard"|"range"|"none", "log": false}}, with "mean",
 *               "variance", "min", "max" when given;
 *               {"vocabulary": "auto"}, {"vocabulary": ["a", "b"]};
 *               {"identity": 78}; {"hash": 100}; {"bucketize": "hour", "boundaries": [6, 10]};
 *               {"cross": ["a", "b"], "buckets": 1000}
 *   model       [LAYER, ...], or
 *               {"nodes": {"a": {LAYER, "from": ["b", "c"]}}, "output": "a"}, or
 *               {"wide_and_deep": {"hidden": [64, 32], "embedding": 8, "cross": [["a", "b"]],
 *                "cross_buckets": 1000, "dropout": 0.0}}
 *     LAYER     one key, whose value is always a map:
 *               {"conv2d": {"out": 6, "kernel": [5, 5], "stride": [1, 1], "padding": [0, 0],
 *                 "dilation": [1, 1], "groups": 1, "bias": true, "name": "conv1"}}
 *               {"linear": {"out": 120, "bias": true, "name": "fc1"}}
 *               {"maxpool"|"avgpool": {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0]}}
 *               {"batchnorm": {"eps": 1e-5, "momentum": 0.1, "per_shard": false, "name": "bn1"}}
 *               {"layernorm": {"eps": 1e-5, "name": "ln1"}}
 *               {"embedding": {"rows": 100, "dim": 8, "of": "company", "name": "emb1"}}
 *               {"dropout": {"p": 0.5}}, {"leaky_relu": {"slope": 0.01}},
 *               {"gelu": {"approximate": "none"|"tanh"}}; {"relu": {}} and so on for
 *               sigmoid, tanh, softmax, log_softmax, flatten, identity; in a graph concat, add
 *     names     counted by kind: conv1, conv2, fc1, bn1, ln1, emb1; in a graph the node's name
 *     "from"    always a list, of nodes or "input" (the image, or the numeric features) or a
 *               data field's name; by default the node before (the first: "input"); an
 *               embedding with "of" and no "from" has []
 *   loss        {"cross_entropy": {}}, {"huber": {"delta": 1.0}}
 *   optimizer   {"sgd": {"lr": 0.001, "momentum": 0.9, ...}}, or {"wide": {...}, "deep": {...}}
 *   clip        {"norm": 1.0} or {"value": 0.5}; absent: none
 *   schedule    {"step": {"every": 30, "gamma": 0.1}}, {"cosine": {"epochs": 20, "min": 0.0}}
 *               (a learning rate, not a factor) or {"plateau": {"patience": 10, "factor": 0.1,
 *               "metric": "test_loss"}}, with or without "warmup": {"steps": 100}, which may
 *               also be alone; absent: constant
 *   metrics     ["accuracy", "top_5"]
 *   test        {"every": "10 steps"|"1 epoch"|"never"}
 *   stop        {"test_loss": {"below": 0.2}, "patience": 5}
 *   checkpoint  {"every": "1 epoch", "keep": 2, "best": "test_loss"|"none"}
 *   workers     "1..4"
 *   batch epochs seed shards threads        integers
 *   init order run_on image                 texts
 *
 * A normal form is itself a spec: printed (spec_print) it reads back as it is, and dumped as JSON
 * too unless a text holds a line separator such as U+2028, which YAML takes for a line's end.
 */
#ifndef MUSTER_SPEC_KEYS_H
#define MUSTER_SPEC_KEYS_H

#include <stddef.h>

/*      kind       what a message and the reference call it; # is where its range goes */
#define KEY_KINDS(X)                                                                    \
    X(TEXT,       "a text")                                                             \
    X(PATH,       "a path")                                                             \
    X(WORD,       "one of the words")           /* `of`: "stop|skip|fill" */            \
    X(BOOL,       "true or false")                                                      \
    X(WHOLE,      "a whole number#")                                                    \
    X(NUMBER,     "a number#")                                                          \
    X(NUMBERS,    "a number# or a list of them")        /* normal: a list */            \
    X(WHOLES,     "a list of whole numbers#")                                           \
    X(PAIR,       "a whole number# or [height, width]") /* normal: [h, w] */            \
    X(TEXTS,      "a text or a list of texts")          /* normal: a list */            \
    X(PATHS,      "a path or a list of paths")          /* normal: a list */            \
    X(GROUP,      "a list of two names or more")                                        \
    X(GROUPS,     "a list of lists of names")                                           \
    X(HEADER,     "true, false or a list of column names")                              \
    X(SHUFFLE,    "true, false or a number of rows")                                    \
    X(VOCABULARY, "auto or a list of values")                                           \
    X(ROWS,       "a range such as 0..404")             /* normal: [0, 404] */          \
    X(RANGE,      "a number or a range such as 1..4")   /* normal: "1..4" */            \
    X(EVERY,      "\"10 steps\", \"1 epoch\" or never")                                 \
    X(WHEN,       "\"10 steps\", \"30 seconds\", \"1 epoch\" or never")                 \
    X(SIZE,       "a size such as 512Mi or 1Gi")                                        \
    X(METRICS,    "a list of metrics")                                                  \
    X(MONITOR,    "a metric of the test, such as test_loss")                            \
    X(MAP,        "a map")                      /* `of`: which */                       \
    X(NAMED,      "a map by names of your own") /* `of`: the map of each value */       \
    X(TEXT_MAP,   "a map of texts")                                                     \
    X(MODEL,      "a list of layers or a map")                                          \
    X(STOP,       "a map of stop rules")

enum key_kind {
#define X(name, words) KEY_##name,
    KEY_KINDS(X)
#undef X
    KEY_KIND_COUNT
};

/* Of a feature's or a column's name; data/ keeps as many. */
enum { KEY_OWN_NAME_MAX = 63 };

enum key_flag {
    KEY_REQUIRED = 1 << 0,
    KEY_HEAD = 1 << 1,          /* exactly one head of a map is given */
    KEY_SHORT = 1 << 2,         /* the key that a bare value stands for */
    KEY_ALONE = 1 << 3,         /* lets its map do without a head */
    KEY_OPEN = 1 << 4,          /* a number above `min`, not equal to it */
    KEY_NAME = 1 << 5,          /* a layer's name: by default counted, `value` is the stem */
    KEY_BELOW = 1 << 6,         /* a number below `max`, not equal to it */
    KEY_NATIVE = 1 << 7,        /* has no place beside a program of the user's own */
};

struct key {
    const char *map, *name;
    enum key_kind kind;
    unsigned flags;
    const char *of;
    double min, max;            /* of numbers, of the items of a list */
    int count;                  /* items in a list; 0: any */
    const char *when;           /* formats of data.train that have the key; NULL: any */
    const char *value;          /* default, as YAML; NULL: none */
    const char *why;            /* one line of docs/spec.md */
};

const struct key *key_table(int *out_n);

/* The row of `name` in `map`; NULL: no such key. */
const struct key *key_find(const char *map, const char *name);

/* The map's row after `k` (NULL: its first) in the order of the table; NULL: no more. */
const struct key *key_next(const char *map, const struct key *k);

/* The first row of the map with one of `flags`; NULL: none. */
const struct key *key_flagged(const char *map, unsigned flags);

/* The key of the map that was probably meant: another library's word for it, the one key that
 * begins so, or the nearest by spelling; NULL: none. */
const char *key_near(const char *map, const char *word);

/* Where a key that is not in this map belongs: "data.train", "sgd"; NULL: nowhere. */
const char *key_home(const char *name);

/* What a message and the reference call a map: "data.train" for "source". */
const char *key_map_words(const char *map);

/* What the key's value has to be, with its range: "a whole number from 1". */
void key_expected(const struct key *k, char *out, size_t size);

void key_word_list(const char *list, char *out, size_t size);   /* "a, b or c" of "a|b|c" */
int key_is_word(const char *list, const char *word);    /* 1: `word` is one of "a|b|c" */
/* Of a list "a|b|c" the only one that begins so, or the nearest; NULL: none. `buf` holds it. */
const char *key_near_word(const char *list, const char *word, char *buf, size_t size);

/* 1: fit to name a job, a layer and its tensors, and files after them. */
int key_is_name(const char *text);

/* Words of `metrics`, beside top_1, top_2, ... */
extern const char key_metrics[];

#endif
