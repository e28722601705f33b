/* fit_a_line.c - house prices by a linear model, as the PaddlePaddle EDL tutorial has it
 *
 *   cc fit_a_line.c $(pkg-config --cflags --libs muster) -o fit_a_line
 *   ./fit_a_line boston_house_prices.csv
 */
#include <muster.h>
#include <stdio.h>

enum { BATCH_SIZE = 20, BUF_SIZE = 500, ROWS = 506, TRAIN_ROWS = ROWS * 8 / 10 };

static const char *const params_dirname = "fit_a_line.inference.model";
static struct muster_reader *test_reader;

/* Rows first..end-1 of the file; features are scaled as (x - mean) / (max - min) over all rows. */
static struct muster_reader *housing(const char *path, long first, long end)
{
    static const char *const names[] = { "CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS",
                                         "RAD", "TAX", "PTRATIO", "B", "LSTAT" };
    struct muster_reader *r = muster_read_csv(path);
    char features[1024];
    size_t n = 0;

    n += (size_t)snprintf(features, sizeof features, "{");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        n += (size_t)snprintf(features + n, sizeof features - n, "%s: {numeric: {scale: range}}, ",
                              names[i]);
    snprintf(features + n, sizeof features - n, "}");
    muster_reader_rows(r, first, end);
    muster_reader_set(r, "skip", "1");          /* the first line counts the rows */
    muster_reader_set(r, "target", "MEDV");
    muster_reader_set(r, "task", "regression");
    muster_reader_set(r, "features", features);
    muster_reader_set(r, "scale_over", "all");
    muster_reader_shuffle(r, BUF_SIZE);
    muster_reader_batch(r, BATCH_SIZE);
    return r;
}

/* A fully connected layer from the 13 features to the price. */
static struct muster_net *train_program(void)
{
    struct muster_net *net = muster_net_new();

    muster_linear(net, 1);
    return net;
}

static void event_handler(struct muster_trainer *trainer, const struct muster_event *event,
                          void *arg)
{
    double *test_loss = arg;

    if (event->kind != MUSTER_END_STEP)
        return;
    if (event->step % 10 == 0) {        /* every 10 batches, record a test cost */
        if (muster_test(trainer, test_reader, test_loss) < 0) {
            fprintf(stderr, "%s\n", muster_error());
            muster_stop(trainer);
            return;
        }
        if (*test_loss < 10.0) {        /* good enough */
            printf("loss is less than 10.0, stop\n");
            muster_stop(trainer);
        }
    }
    /* The parameters, for inference later. */
    if (muster_save(trainer, params_dirname) < 0) {
        fprintf(stderr, "%s\n", muster_error());
        muster_stop(trainer);
    }
}

/* What the saved model says of the first house. */
static int infer(void)
{
    static const double house[13] = { 0.00632, 18, 2.31, 0, 0.538, 6.575, 65.2, 4.09, 1, 296, 15.3,
                                      396.9, 4.98 };
    struct muster_model *model = muster_load(params_dirname);
    float price;

    if (!model || muster_infer(model, house, 13, &price) < 0) {
        fprintf(stderr, "%s\n", muster_error());
        muster_model_free(model);
        return 1;
    }
    printf("the first house: %.1f thousand dollars (24.0 in the data)\n", (double)price);
    muster_model_free(model);
    return 0;
}

int main(int argc, char **argv)
{
    double test_loss = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: fit_a_line boston_house_prices.csv\n");
        return 2;
    }
    struct muster_reader *train_reader = housing(argv[1], 0, TRAIN_ROWS);
    test_reader = housing(argv[1], TRAIN_ROWS, -1);
    struct muster_net *net = train_program();
    struct muster_trainer *trainer = muster_trainer_new(net, "squared_error", "sgd: {lr: 0.001}");

    int rc = muster_train(trainer, train_reader, 100, event_handler, &test_loss);
    if (rc < 0)
        fprintf(stderr, "%s\n", muster_error());
    else
        printf("test loss %.2f\n", test_loss);
    if (rc == 0)
        rc = infer();
    muster_trainer_free(trainer);
    muster_net_free(net);
    muster_reader_free(test_reader);
    muster_reader_free(train_reader);
    return rc == 0 ? 0 : 1;
}
