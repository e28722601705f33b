/* cli/export.c - muster export: a model in the formats of others */
#include <stdio.h>

#include "base/files.h"
#include "base/own.h"
#include "cli/checkpoint.h"
#include "cli/cli.h"
#include "serving/export.h"
#include "serving/predictor.h"

struct args {
    const char *format, *output, *checkpoint;
};

static const struct option options[] = {
    { "format", 0, "onnx|safetensors|torch", "what to write", OPTION_TEXT,
      offsetof(struct args, format) },
    { "checkpoint", 0, "best|last|STEP", "use these parameters of the run (default: the model's)",
      OPTION_TEXT, offsetof(struct args, checkpoint) },
    { "output", 'o', "FILE", "where to (-: standard output)", OPTION_TEXT, offsetof(struct args, output) },
    { 0 }
};

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    OWN(predictor) p = NULL;
    OWN(file_writer) to = NULL;
    int n = options_parse(options, argc, argv, &a, err);

    (void)c;
    if (n < 0)
        return n;
    if (n != 1 || !a.format || !a.output)
        return cli_usage(&command_export, err);
    export_fn fn = export_find(a.format);
    if (!fn)
        return err_set(err, ERR_INVALID, "--format %s is not known (onnx, safetensors or torch)",
                       a.format);
    if (predictor_open(argv[0], 0, 1, false, &p, err) < 0 ||
        checkpoint_load(p, argv[0], a.checkpoint, err) < 0)
        return -(int)err->code;
    if (file_writer_output(a.output, &to, err) < 0 || fn(predictor_plan(p), to, err) < 0)
        return -(int)err->code;
    return file_writer_commit(to, err);
}

const struct command command_export = {
    .name = "export",
    .args = "MODEL",
    .summary = "write a model for ONNX, safetensors or PyTorch",
    .example = "muster export runs/fashion-lenet --format onnx -o lenet.onnx",
    .options = options,
    .run = run,
};
