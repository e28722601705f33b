/* tests/numeric/networks_test.c - both image networks beside PyTorch's recorded first hundred steps
 *
 * From PyTorch's own initial weights (torch_init.py makes them, bit for bit) and in its sample
 * order, through a spec's `init` and `order`. record_networks.py tells what was recorded, and why
 * ConvBlock at its full learning rate is held to PyTorch's own spread. Skipped without the data.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/trainer.h"
#include "tests/check.h"

enum { STEPS = 100 };

struct losses {
    double value[STEPS];
    long n;
};

static int collect(void *arg, struct trainer *t, const struct train_event *e)
{
    struct losses *l = arg;

    (void)t;
    for (long i = 0; e->kind == EVENT_STEPS && i < e->n_results && l->n < STEPS; i++)
        l->value[l->n++] = e->results[i].loss;
    return l->n == STEPS;
}

static const char *root(void)
{
    const char *r = getenv("MUSTER_ROOT");
    return r ? r : ".";
}

/* True when the images that the examples name are there. */
static int has_data(void)
{
    char *path = spec_resolve_path(".", "$MUSTER_DATA/fashion-mnist/train-images-idx3-ubyte.gz");
    int there = path && access(path, R_OK) == 0;

    free(path);
    return there;
}

static void make_init(const char *network, const char *path)
{
    char command[4096];

    snprintf(command, sizeof command, "python3 '%s/tests/numeric/torch_init.py' %s 1 '%s'", root(),
             network, path);
    int status = system(command);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static json_t *recorded(const char *network, const char *key)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/tests/numeric/fixtures/%s.json", root(), network);
    json_t *doc = json_load_file(path, 0, NULL);
    assert_non_null(doc);
    json_t *part = json_incref(json_object_get(doc, key));
    assert_non_null(part);
    json_decref(doc);
    return part;
}

static void train(const char *network, const json_t *want, struct losses *out)
{
    char path[4096], init[64], text[5][4096];
    const char *set[5];
    struct err err = { 0 };
    struct job_spec *spec = NULL;
    struct trainer *t = NULL;
    struct fit_result result;

    snprintf(init, sizeof init, "/tmp/muster-init-XXXXXX");
    int fd = mkstemp(init);
    assert_true(fd >= 0);
    close(fd);
    make_init(network, init);
    snprintf(text[0], sizeof text[0], "epochs=1");
    snprintf(text[1], sizeof text[1], "limit=%d",
             (int)json_integer_value(json_object_get(want, "rows")));
    snprintf(text[2], sizeof text[2], "init=%s", init);
    snprintf(text[3], sizeof text[3], "order=%s/tests/numeric/fixtures/%s_order.bin", root(),
             network);
    snprintf(text[4], sizeof text[4], "optimizer.sgd.lr=%g",
             json_number_value(json_object_get(want, "lr")));
    for (int i = 0; i < 5; i++)
        set[i] = text[i];
    snprintf(path, sizeof path, "%s/examples/fashion-%s/train.yaml", root(), network);
    assert_ok(spec_read(path, set, 5, &spec, &err));
    assert_ok(trainer_new(spec, 2, &t, &err));
    assert_ok(trainer_fit(t, collect, out, &result, &err));
    trainer_free(t);
    spec_free(spec);
    unlink(init);
}

/* Every loss within 1e-4, or, with `spreads`, within so many times PyTorch's own spread. */
static void compare(const char *network, const char *key, double spreads)
{
    struct losses got = { .n = 0 };

    if (!has_data()) {
        print_message("the data set is not there (make setup fetches it)\n");
        skip();
    }
    json_t *want = recorded(network, key);
    train(network, want, &got);
    assert_int_equal(got.n, STEPS);
    for (int i = 0; i < STEPS; i++) {
        double loss = json_real_value(json_array_get(json_object_get(want, "losses"), (size_t)i));
        double own = json_number_value(json_array_get(json_object_get(want, "spread"), (size_t)i));
        double tol = fmax(1e-4, spreads * own);
        if (!(fabs(got.value[i] - loss) <= tol))
            fail_msg("%s, %s: the loss of step %d is %.7f, PyTorch's %.7f: off by %.1e, more than "
                     "%.1e", network, key, i, got.value[i], loss, fabs(got.value[i] - loss), tol);
    }
    json_decref(want);
}

static void lenet_has_the_losses_of_pytorch(void **state)
{
    (void)state;
    compare("lenet", "first", 0);
}

static void convblock_has_the_losses_of_pytorch_at_a_gentle_rate(void **state)
{
    (void)state;
    compare("convblock", "gentle", 0);
}

static void convblock_is_as_near_to_pytorch_as_pytorch_is_to_itself(void **state)
{
    (void)state;
    compare("convblock", "first", 3);
}

CHECK_MAIN(lenet_has_the_losses_of_pytorch,
           convblock_has_the_losses_of_pytorch_at_a_gentle_rate,
           convblock_is_as_near_to_pytorch_as_pytorch_is_to_itself)
