/* Several meshes in one process, a thread each, as workers are processes: the same code, and the
 * thread sanitizer sees it. */
#include "runtime/mesh.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "runtime/mesh_int.h"
#include "runtime/wire.h"
#include "tests/check.h"

enum { WORKERS = 8, FLOATS = 4096 + 16 * 7, SHARDS = 8, COUNT = 5 };
/* A board: two sides that are posted before a reduce, and what is posted after it. */
enum { BEFORE = 48, AFTER = 33000, BOARD = 2 * BEFORE + AFTER + 8 };

static const char token[] = "a token that nobody else knows";

enum how { SHARED, TCP, MIXED, TLS, HOWS };

struct worker {
    pthread_t thread;
    struct mesh *mesh;
    struct mesh_peer peer;
    _Atomic int losses;
    _Atomic uint64_t lost_id;
    /* What a thread is to do, and what became of it. */
    uint64_t generation;
    const struct mesh_peer *list;
    int n, self;
    int steps;
    int rc;
    int wrong;
    struct err err;
    bool (*stop_at)(struct worker *w, int step);
    int leave_at;               /* goes away in this step when it has shown roots; 0: never */
    struct worker *crew;        /* those it works with: crew[who[0..n-1]] */
    const int *who;
    _Atomic int step;
};

static void on_lost(void *arg, uint64_t id)
{
    struct worker *w = arg;
    atomic_fetch_add(&w->losses, 1);
    atomic_store(&w->lost_id, id);
}

/* So slow that a busy machine is not taken for a dead one; the test of silence has it faster. */
static int beat_ms = 2000;

static bool reads_tcp(enum how how, uint64_t id)
{
    return how == TCP || how == TLS || (how == MIXED && id % 2);
}

static void worker_start(struct worker *w, uint64_t id, enum how how)
{
    struct err err = { 0 };
    struct mesh_config c = { .token = token, .listen = how == TLS ? "tls:127.0.0.1:0" : "127.0.0.1:0",
                             .host = "here",
                             .floats = FLOATS, .board = BOARD, .shards = SHARDS,
                             .lost = on_lost, .arg = w,
                             .beat_ms = beat_ms,
                             .no_shared_memory = reads_tcp(how, id) };

    *w = (struct worker){ 0 };
    assert_ok(mesh_new(&c, &w->mesh, &err));
    w->peer = (struct mesh_peer){ .id = id, .pid = getpid() };
    snprintf(w->peer.host, sizeof w->peer.host, "here");
    snprintf(w->peer.address, sizeof w->peer.address, "%s", mesh_address(w->mesh));
}

/* ------------------------------------------------------------ the truth, in one thread */

static float value(uint64_t step, int shard, long i)
{
    return rng_uniform(7, step * 100 + (uint64_t)shard, (uint64_t)i) * 2 - 1;
}

/* Of shards [from, from + width): the pairwise tree; false: all are empty. */
static bool tree(uint64_t step, int from, int width, unsigned filled, float *out)
{
    if (width == 1) {
        if (!(filled >> from & 1))
            return false;
        for (long i = 0; i < FLOATS; i++)
            out[i] = value(step, from, i);
        return true;
    }
    float *right = malloc(sizeof(float) * FLOATS);
    bool a = tree(step, from, width / 2, filled, out);
    bool b = tree(step, from + width / 2, width / 2, filled, right);
    for (long i = 0; b && i < FLOATS; i++)
        out[i] = a ? out[i] + right[i] : right[i];
    free(right);
    return a || b;
}

static unsigned filled_at(uint64_t step)
{
    static const unsigned some[] = { 0xff, 0x01, 0x80, 0x5a, 0xf0, 0x3f, 0xff, 0x11 };
    return some[step % 8];
}

/* ------------------------------------------------------------ what a worker does */

/* What the one with this id has on its board in a step. */
static float on_board(uint64_t step, uint64_t id, long i)
{
    return (float)(step * 1000 + id * 10) + (float)(i % 7);
}

static int put_on_board(struct worker *w, uint64_t step, long from, long n)
{
    float *own = mesh_board(w->mesh);

    for (long i = from; i < from + n; i++)
        own[i] = on_board(step, w->list[w->self].id, i);
    return mesh_post(w->mesh, from, n, &w->err);
}

static void look_at_board(struct worker *w, uint64_t step, int place, long from, long n)
{
    const float *board = mesh_board_of(w->mesh, place);

    for (long i = from; i < from + n; i++)
        w->wrong += board[i] != on_board(step, w->list[place].id, i);
}

/* The own roots of a step; one without samples is nobody's to look at. */
static void fill_roots(struct worker *w, uint64_t step)
{
    const struct mesh_peer *own = &w->list[w->self];
    int r = 0;

    for (int at = own->from, width; at < own->to; at += width, r++) {
        width = 1;
        while (at % (2 * width) == 0 && at + 2 * width <= own->to)
            width *= 2;
        float *root = mesh_root(w->mesh, mesh_side(w->mesh), r);
        if (!tree(step, at, width, filled_at(step), root))
            memset(root, 0xff, sizeof(float) * FLOATS);
    }
}

/* From the end to the beginning, or not so far, in pieces of any size; differently in each worker
 * and step. */
static void show_roots(struct worker *w, uint64_t step)
{
    const uint64_t key = step * 100 + w->list[w->self].id;
    const long least = FLOATS * (long)(key % 4) / 4;
    long from = FLOATS;

    for (uint64_t i = 0; from > least; i++) {
        long piece = 16 * (1 + (long)(rng_uniform(3, key, i) * (float)(key % 5 * 40)));
        from = from > piece ? from - piece : 0;
        mesh_ready(w->mesh, filled_at(step), from);
    }
}

static int do_step(struct worker *w, uint64_t step)
{
    struct mesh *m = w->mesh;
    const struct mesh_peer *own = &w->list[w->self];
    const struct grad_segment *s;
    float rows[SHARDS][COUNT + 2];
    uint64_t told[4] = { 0 };
    int n, rc;

    fill_roots(w, step);
    show_roots(w, step);
    if (w->leave_at && step == (uint64_t)w->leave_at)
        return 1;
    for (int pass = 0; pass < 3; pass++) {
        memset(rows, 0, sizeof rows);
        for (int k = own->from; k < own->to; k++)
            for (int i = 0; i < COUNT; i++)
                rows[k][i] = value(step + (uint64_t)pass, k, i);
        if ((rc = mesh_gather(m, rows[0], COUNT + 2, COUNT, &w->err)) < 0)
            return rc;
        for (int k = 0; k < SHARDS; k++)
            for (int i = 0; i < COUNT; i++)
                w->wrong += w->n > 1 && rows[k][i] != value(step + (uint64_t)pass, k, i);
    }
    int from = (int)(step % (uint64_t)w->n);
    if (from == w->self)
        for (uint64_t i = 0; i < 4; i++)
            told[i] = step * 10 + i;
    if ((rc = mesh_tell(m, from, told, sizeof told, &w->err)) < 0)
        return rc;
    for (uint64_t i = 0; i < 4; i++)
        w->wrong += told[i] != step * 10 + i;

    const long side = BEFORE * (mesh_side(m) & 1);
    if ((rc = put_on_board(w, step, side, BEFORE)) < 0 ||
        (rc = mesh_reduce(m, filled_at(step), &s, &n, &w->err)) < 0)
        return rc;
    float *want = malloc(sizeof(float) * FLOATS);
    long next = 0;
    tree(step, 0, SHARDS, filled_at(step), want);
    for (int i = 0; i < n; i++) {
        w->wrong += s[i].from != next;
        for (long k = s[i].from; k < s[i].to; k++) {
            float got = s[i].sum[k - s[i].from];
            if (s[i].plus)
                got += s[i].plus[k - s[i].from];
            w->wrong += memcmp(&got, &want[k], sizeof got) != 0;
        }
        next = s[i].to;
    }
    w->wrong += next != FLOATS || !mesh_intact(m);
    free(want);
    for (int i = 0; i < w->n; i++)
        look_at_board(w, step, i, side, BEFORE);
    if ((rc = put_on_board(w, step, 2 * BEFORE, AFTER)) < 0)
        return rc;
    for (int d = 1; d < w->n; d++) {
        const int i = (w->self + d) % w->n;
        if ((rc = mesh_wait_for(m, i, &w->err)) < 0)
            return rc;
        look_at_board(w, step, i, 2 * BEFORE, AFTER);
    }
    return mesh_wait_for(m, w->self, &w->err);
}

/* Where nobody was meant to fail, the others are not left waiting for one that did. */
static void give_up(struct worker *w)
{
    if (w->rc == 0 || w->stop_at || w->leave_at)
        return;
    print_message("worker %d of %d: %s\n", w->self, w->n, w->err.text);
    for (int i = 0; i < w->n; i++)
        mesh_abort(w->crew[w->who[i]].mesh, w->generation);
}

static void *run_worker(void *arg)
{
    struct worker *w = arg;

    w->rc = mesh_enter(w->mesh, w->generation, w->list, w->n, w->self, 10000, &w->err);
    for (int i = 0; i < w->steps && w->rc == 0; i++) {
        atomic_store(&w->step, i);
        if (w->stop_at && w->stop_at(w, i))
            break;
        w->rc = do_step(w, (uint64_t)i);
    }
    if (w->rc == 1)
        w->rc = 0;
    give_up(w);
    return NULL;
}

/* Contiguous shares; those beyond the shards stand by. */
static void share_out(struct mesh_peer *list, int n)
{
    int busy = n < SHARDS ? n : SHARDS;
    for (int i = 0; i < n; i++) {
        list[i].from = i < busy ? SHARDS * i / busy : SHARDS;
        list[i].to = i < busy ? SHARDS * (i + 1) / busy : SHARDS;
    }
}

/* Runs the workers `who` (in this order) through a generation. */
static void generation_begin(struct worker *all, const int *who, int n, uint64_t generation,
                             int steps, struct mesh_peer *list)
{
    for (int i = 0; i < n; i++)
        list[i] = all[who[i]].peer;
    share_out(list, n);
    for (int i = 0; i < n; i++) {
        struct worker *w = &all[who[i]];
        w->generation = generation;
        w->list = list;
        w->n = n;
        w->self = i;
        w->crew = all;
        w->who = who;
        w->steps = steps;
        w->wrong = 0;
        pthread_create(&w->thread, NULL, run_worker, w);
    }
}

static void generation_end(struct worker *all, const int *who, int n, int want)
{
    for (int i = 0; i < n; i++)
        pthread_join(all[who[i]].thread, NULL);
    for (int i = 0; i < n; i++) {
        struct worker *w = &all[who[i]];
        if (w->rc != want)
            fail_msg("worker %d of %d: %d (%s)", i, n, w->rc, w->err.text);
        assert_int_equal(w->wrong, 0);
    }
}

static void workers_start(struct worker *all, int n, enum how how)
{
    for (int i = 0; i < n; i++)
        worker_start(&all[i], (uint64_t)i + 1, how);
}

static void workers_end(struct worker *all, int n)
{
    for (int i = 0; i < n; i++) {
        mesh_free(all[i].mesh);
        all[i].mesh = NULL;
    }
}

static const int everyone[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };

/* ------------------------------------------------------------ workers that are processes */

enum { PROCESSES = 3 };

struct meeting {                /* shared by all of them */
    struct mesh_peer list[PROCESSES];
    _Atomic int here, steps[PROCESSES], go;
};

static _Noreturn void stay_with(struct meeting *meet, int i, enum how how)
{
    static struct worker w;

    worker_start(&w, (uint64_t)i + 1, how);
    meet->list[i] = w.peer;
    atomic_fetch_add(&meet->here, 1);
    while (atomic_load(&meet->here) < PROCESSES)
        usleep(1000);
    struct mesh_peer list[PROCESSES];
    memcpy(list, meet->list, sizeof list);
    share_out(list, PROCESSES);
    w.list = list;
    w.n = PROCESSES;
    w.self = i;
    w.rc = mesh_enter(w.mesh, 1, list, PROCESSES, i, 10000, &w.err);
    for (int j = 0; j < PROCESSES && w.rc == 0; j++)
        if (j != i)
            w.wrong += w.mesh->place[j].link->we_read_tcp != reads_tcp(how, w.peer.id);
    for (uint64_t step = 0; w.rc == 0; step++) {
        w.rc = do_step(&w, step);
        atomic_fetch_add(&meet->steps[i], w.rc == 0);
    }
    /* Without the one in place 1. */
    while (!atomic_load(&meet->go))
        usleep(1000);
    bool told = atomic_load(&w.losses) == 1 && atomic_load(&w.lost_id) == 2;
    list[1] = list[2];
    share_out(list, 2);
    w.n = 2;
    w.self = i / 2;
    w.rc = mesh_enter(w.mesh, 2, list, 2, w.self, 10000, &w.err);
    for (uint64_t step = 0; step < 5 && w.rc == 0; step++)
        w.rc = do_step(&w, step);
    mesh_free(w.mesh);
    _exit(w.rc == 0 && w.wrong == 0 && told ? 0 : w.wrong ? 3 : told ? 2 : 1);
}

/* Kills or stops the one in place 1 in the middle of the work; the others notice and go on. */
static void lose_a_process(enum how how, int by)
{
    struct meeting *meet = mmap(NULL, sizeof *meet, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[PROCESSES];
    int status;

    for (int i = 0; i < PROCESSES; i++)
        if ((pid[i] = fork()) == 0)
            stay_with(meet, i, how);
    for (int ms = 0; ms < 10000 && atomic_load(&meet->steps[1]) < 20; ms++)
        usleep(1000);
    assert_true(atomic_load(&meet->steps[1]) >= 20);
    kill(pid[1], by);
    usleep(by == SIGSTOP ? 1000000 : 200000);
    atomic_store(&meet->go, 1);
    for (int i = 0; i < PROCESSES; i += 2) {
        waitpid(pid[i], &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    kill(pid[1], SIGKILL);
    waitpid(pid[1], &status, 0);
    munmap(meet, sizeof *meet);
}

static void a_process_that_is_killed_is_noticed_at_once(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how++)
        lose_a_process(how, SIGKILL);
}

static void a_process_that_hangs_is_noticed_by_its_silence(void **state)
{
    (void)state;
    beat_ms = 100;
    lose_a_process(TCP, SIGSTOP);
    beat_ms = 2000;
}

/* ------------------------------------------------------------ tests */

static void any_number_of_workers_gives_the_same_sums(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 3, 5, 8, 10 };
    static struct worker all[10];
    struct mesh_peer list[10];

    for (int how = 0; how < HOWS; how++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            if (how == TLS && sizes[s] > 5)
                break;          /* one thread for all of a process: these are ten in one */
            workers_start(all, sizes[s], how);
            generation_begin(all, everyone, sizes[s], 1, 16, list);
            generation_end(all, everyone, sizes[s], 0);
            workers_end(all, sizes[s]);
        }
}

static void workers_come_and_go(void **state)
{
    (void)state;
    static const struct {
        int n, who[WORKERS];
    } rosters[] = { { 2, { 0, 1 } },          { 3, { 0, 1, 2 } },       { 2, { 2, 0 } },
                    { 5, { 0, 2, 3, 4, 5 } }, { 1, { 3 } },             { 4, { 6, 3, 4, 0 } },
                    { 6, { 0, 3, 4, 5, 6, 7 } } };
    static struct worker all[WORKERS];
    struct mesh_peer list[WORKERS];

    for (int how = 0; how < HOWS; how++) {
        workers_start(all, WORKERS, how);
        for (size_t g = 0; g < sizeof rosters / sizeof rosters[0]; g++) {
            generation_begin(all, rosters[g].who, rosters[g].n, 10 + g, 5, list);
            generation_end(all, rosters[g].who, rosters[g].n, 0);
        }
        workers_end(all, WORKERS);
    }
}

/* Right after one has closed its side of a link the other is asked to use it again. */
static void a_link_that_the_other_has_closed_is_made_anew(void **state)
{
    (void)state;
    static const int both[] = { 1, 0 };
    static struct worker all[2];
    struct mesh_peer list[2];

    for (int how = 0; how < HOWS; how++) {
        workers_start(all, 2, how);
        for (uint64_t g = 1; g < 100; g++) {
            int n = g % 2 ? 2 : 1;
            generation_begin(all, both, n, g, 1, list);
            generation_end(all, both, n, 0);
        }
        workers_end(all, 2);
    }
}

static bool two_stops(struct worker *w, int step)
{
    return step == 3 && w->peer.id == 2;
}

static void an_abort_ends_every_wait_and_the_next_generation_goes_on(void **state)
{
    (void)state;
    struct err err = { 0 };
    static struct worker all[3];
    struct mesh_peer list[3];

    for (int round = 0; round < 2 * HOWS; round++) {
        workers_start(all, 3, round % HOWS);
        for (int i = 0; i < 3; i++)
            if (round < HOWS)
                all[i].stop_at = two_stops;
            else
                all[i].leave_at = i == 1 ? 3 : -1;      /* in the middle of its step */
        generation_begin(all, everyone, 3, 5, 10, list);
        for (int ms = 0; ms < 10000 && atomic_load(&all[1].step) < 3; ms++)
            usleep(1000);
        usleep(20000);          /* worker 2 has stopped; the others wait for it */
        double before = clock_seconds();
        for (int i = 0; i < 3; i++)
            mesh_abort(all[i].mesh, 5);
        for (int i = 0; i < 3; i++)
            pthread_join(all[i].thread, NULL);
        assert_true(clock_seconds() - before < 2);
        assert_int_equal(all[0].rc, -ERR_AGAIN);
        assert_int_equal(all[1].rc, 0);
        assert_int_equal(all[2].rc, -ERR_AGAIN);
        for (int i = 0; i < 3; i++) {
            all[i].stop_at = NULL;
            all[i].leave_at = 0;
        }

        mesh_abort(all[1].mesh, 6);     /* before it is entered */
        assert_fails(mesh_enter(all[1].mesh, 6, list, 3, 1, 5000, &err), ERR_AGAIN);
        generation_begin(all, everyone, 3, 7, 6, list);
        generation_end(all, everyone, 3, 0);
        for (int i = 0; i < 3; i++)
            assert_int_equal(atomic_load(&all[i].losses), 0);
        workers_end(all, 3);
    }
}

/* What was not posted is not waited for: others have reached the number of the post before. */
static void a_post_that_came_too_late_is_nobodys(void **state)
{
    (void)state;
    struct worker all[2];
    struct mesh_peer list[2];
    struct err err;

    for (int how = 0; how < HOWS; how++) {
        workers_start(all, 2, how);
        generation_begin(all, everyone, 2, 3, 4, list);
        generation_end(all, everyone, 2, 0);
        assert_ok(mesh_wait_for(all[0].mesh, 1, &err));
        mesh_abort(all[0].mesh, 3);
        assert_fails(mesh_post(all[0].mesh, 0, AFTER, &err), ERR_AGAIN);
        assert_fails(mesh_wait_for(all[0].mesh, 1, &err), ERR_AGAIN);
        generation_begin(all, everyone, 2, 4, 4, list);
        generation_end(all, everyone, 2, 0);
        workers_end(all, 2);
    }
}

/* Two workers that read by TCP, in a generation; the caller is both. */
static void two_enter(struct worker *all, uint64_t generation, struct mesh_peer *list)
{
    generation_begin(all, everyone, 2, generation, 0, list);
    generation_end(all, everyone, 2, 0);
}

static void *run_gather(void *arg)
{
    struct worker *w = arg;
    float rows[SHARDS] = { 0 };

    w->rc = mesh_gather(w->mesh, rows, 1, 1, &w->err);
    return NULL;
}

static void what_is_shown_has_come_before_the_reduce_begins(void **state)
{
    (void)state;
    enum { FROM = FLOATS / 2 / 16 * 16 };
    static struct worker all[2];
    struct mesh_peer list[2];
    float want[FLOATS];

    workers_start(all, 2, TCP);
    two_enter(all, 1, list);
    assert_true(mesh_wants_ready(all[0].mesh));
    fill_roots(&all[0], 0);
    mesh_ready(all[0].mesh, filled_at(0), FROM);
    link_quiet(all[0].mesh->place[1].link);
    /* What follows on the link comes after it. */
    for (int i = 0; i < 2; i++)
        pthread_create(&all[i].thread, NULL, run_gather, &all[i]);
    generation_end(all, everyone, 2, 0);
    const struct region *mirror = all[1].mesh->place[0].region;
    const float *root = (const float *)((const char *)mirror + region_root(FLOATS, 0, 0));
    tree(0, 0, SHARDS / 2, filled_at(0), want);
    assert_memory_equal(root + FROM, want + FROM, (FLOATS - FROM) * sizeof(float));
    assert_true(root[FROM - 1] == 0);
    workers_end(all, 2);
}

/* The bytes are counted when the reduce begins. */
static void what_left_early_is_counted(void **state)
{
    (void)state;
    static struct worker all[2];
    struct mesh_peer list[2];

    for (int how = 0; how < 2; how++) {
        workers_start(all, 2, how);
        two_enter(all, 1, list);
        for (int i = 0; i < 2; i++) {
            fill_roots(&all[i], 0);
            mesh_ready(all[i].mesh, filled_at(0), 16);
            link_quiet(all[i].mesh->place[!i].link);
        }
        generation_begin(all, everyone, 2, 2, 1, list);
        generation_end(all, everyone, 2, 0);
        for (int i = 0; i < 2; i++)
            assert_true((mesh_bytes_early(all[i].mesh) > 0) == (how == TCP));
        workers_end(all, 2);
    }
}

/* The outbox is stopped in the middle of a message: what waits in it is thrown away, and that
 * message is of a generation that is over. */
static void what_was_shown_is_gone_with_its_generation(void **state)
{
    (void)state;
    static struct worker all[2];
    struct mesh_peer list[2];

    workers_start(all, 2, TCP);
    two_enter(all, 1, list);
    struct link *l = all[0].mesh->place[1].link;
    fill_roots(&all[0], 0);
    pthread_mutex_lock(&l->sending);
    for (long from = FLOATS - 16; from >= 0; from -= 16)
        mesh_ready(all[0].mesh, filled_at(0), from);
    for (int i = 0; i < 2; i++)
        mesh_abort(all[i].mesh, 1);
    mesh_ready(all[0].mesh, filled_at(0), 0);
    generation_begin(all, everyone, 2, 2, 6, list);
    usleep(20000);              /* worker 2 waits for worker 1, which waits for its outbox */
    pthread_mutex_unlock(&l->sending);
    generation_end(all, everyone, 2, 0);
    assert_int_equal(l->box.bulk.put, l->box.bulk.done);
    workers_end(all, 2);
}

static void one_that_dies_is_told_and_the_others_go_on(void **state)
{
    (void)state;
    static const int left[] = { 0, 2, 3 };
    static struct worker all[4];
    struct mesh_peer list[4], next[4];

    for (int how = 0; how < HOWS; how++) {
        workers_start(all, 4, how);
        for (int i = 0; i < 4; i++)
            all[i].stop_at = two_stops;
        generation_begin(all, everyone, 4, 5, 10, list);
        pthread_join(all[1].thread, NULL);
        mesh_free(all[1].mesh);
        for (int i = 0; i < 3; i++) {
            pthread_join(all[left[i]].thread, NULL);
            assert_int_equal(all[left[i]].rc, -ERR_AGAIN);
            for (int ms = 0; ms < 2000 && atomic_load(&all[left[i]].losses) == 0; ms++)
                usleep(1000);
            assert_int_equal(atomic_load(&all[left[i]].losses), 1);
            assert_int_equal(atomic_load(&all[left[i]].lost_id), 2);
        }
        for (int i = 0; i < 4; i++)
            all[i].stop_at = NULL;
        generation_begin(all, left, 3, 6, 6, next);
        generation_end(all, left, 3, 0);

        /* A newcomer in its place. */
        worker_start(&all[1], 9, how);
        generation_begin(all, everyone, 4, 7, 6, list);
        generation_end(all, everyone, 4, 0);
        workers_end(all, 4);
    }
}

/* One that was left out comes back under another number, in the first place: the others may call it
 * before it knows. */
static void one_comes_back_as_another(void **state)
{
    (void)state;
    static const int others[] = { 1, 2 };
    static struct worker all[3];
    struct mesh_peer list[3];

    for (int how = 0; how < HOWS; how++) {
        workers_start(all, 3, how);
        generation_begin(all, everyone, 3, 1, 4, list);
        generation_end(all, everyone, 3, 0);
        generation_begin(all, others, 2, 2, 4, list);
        generation_end(all, others, 2, 0);
        all[0].peer.id = 20;
        for (int i = 0; i < 3; i++)
            list[i] = all[i].peer;
        share_out(list, 3);
        for (int i = 2; i >= 0; i--) {
            all[i].list = list;
            all[i].generation = 3;
            all[i].n = 3;
            all[i].self = i;
            all[i].crew = all;
            all[i].who = everyone;
            if (i == 0)
                usleep(20000);
            pthread_create(&all[i].thread, NULL, run_worker, &all[i]);
        }
        generation_end(all, everyone, 3, 0);
        workers_end(all, 3);
    }
}

/* Worker 1 is left with what it read when worker 2 goes on without it. */
static void one_that_was_left_out_can_tell(void **state)
{
    (void)state;
    struct err err = { 0 };
    static struct worker all[2];
    struct mesh_peer list[2];
    const struct grad_segment *s;
    int n;

    workers_start(all, 2, SHARED);
    generation_begin(all, everyone, 2, 1, 4, list);
    generation_end(all, everyone, 2, 0);
    assert_true(mesh_intact(all[0].mesh));
    generation_begin(all, everyone + 1, 1, 2, 4, list);
    generation_end(all, everyone + 1, 1, 0);
    assert_false(mesh_intact(all[0].mesh));
    assert_fails(mesh_reduce(all[0].mesh, 255, &s, &n, &err), ERR_AGAIN);
    workers_end(all, 2);
}

static void one_that_cannot_be_reached_is_told(void **state)
{
    (void)state;
    struct err err = { 0 };
    static struct worker all[2];
    struct mesh_peer list[2];

    workers_start(all, 2, SHARED);
    mesh_free(all[0].mesh);
    list[0] = all[0].peer;
    list[1] = all[1].peer;
    share_out(list, 2);
    assert_fails(mesh_enter(all[1].mesh, 1, list, 2, 1, 5000, &err), ERR_AGAIN);
    assert_int_equal(atomic_load(&all[1].lost_id), 1);
    list[0] = all[1].peer;      /* now the other would have to call */
    list[1] = all[0].peer;
    share_out(list, 2);
    assert_fails(mesh_enter(all[1].mesh, 2, list, 2, 0, 100, &err), ERR_AGAIN);
    assert_int_equal(atomic_load(&all[1].losses), 2);
    mesh_free(all[1].mesh);
}

/* The state of place 1 to places 0 and 2; 3 has no part in it. */
static void *run_copy(void *arg)
{
    struct worker *w = arg;
    enum { BYTES = 3000000 };
    unsigned char *bytes = malloc(BYTES);
    void *got = NULL;
    size_t n = 0;

    w->rc = mesh_enter(w->mesh, w->generation, w->list, w->n, w->self, 10000, &w->err);
    for (int round = 0; round < 2 && w->rc == 0; round++) {
        for (int i = 0; i < BYTES; i++)
            bytes[i] = (unsigned char)(i * 7 + round);
        got = NULL;
        w->rc = mesh_copy(w->mesh, 1, 5, bytes, round ? BYTES : 0, &got, &n, &w->err);
        if (w->self == 0 || w->self == 2)
            w->wrong += !got || n != (round ? BYTES : 0) || memcmp(got, bytes, n) != 0;
        else
            w->wrong += got != NULL;
        free(got);
    }
    free(bytes);
    if (w->rc == 0)
        w->rc = do_step(w, 4);
    give_up(w);
    return NULL;
}

static void a_state_is_copied_to_those_who_lack_it(void **state)
{
    (void)state;
    static struct worker all[4];
    struct mesh_peer list[4];

    for (int how = 0; how < HOWS; how++) {
        workers_start(all, 4, how);
        for (int i = 0; i < 4; i++)
            list[i] = all[i].peer;
        share_out(list, 4);
        for (int i = 0; i < 4; i++) {
            all[i].generation = 3;
            all[i].list = list;
            all[i].n = 4;
            all[i].self = i;
            all[i].crew = all;
            all[i].who = everyone;
            pthread_create(&all[i].thread, NULL, run_copy, &all[i]);
        }
        generation_end(all, everyone, 4, 0);
        workers_end(all, 4);
    }
}

static void a_stranger_at_the_door_stops_nobody(void **state)
{
    (void)state;
    struct err err = { 0 };
    static struct worker all[2];
    struct mesh_peer list[2];
    int fd[80];

    workers_start(all, 2, TCP);
    for (int i = 0; i < 80; i++) {
        assert_ok(wire_connect(all[i % 2].peer.address, token, 1000, &fd[i], &err));
        if (i % 3 == 0)
            assert_int_equal(write(fd[i], "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27), 27);
    }
    assert_fails(wire_prove(fd[1], "another token than theirs", 1000, &err), ERR_DENIED);
    generation_begin(all, everyone, 2, 1, 3, list);
    generation_end(all, everyone, 2, 0);
    for (int i = 0; i < 80; i++)
        close(fd[i]);
    workers_end(all, 2);
}

static void the_bytes_of_a_step_are_what_the_bound_says(void **state)
{
    (void)state;
    static struct worker all[4];
    struct mesh_peer list[4];

    for (int how = 0; how < 2; how++) {
        workers_start(all, 4, how);
        generation_begin(all, everyone, 4, 1, 1, list);
        generation_end(all, everyone, 4, 0);
        uint64_t sum = 0;
        for (int i = 0; i < 4; i++)
            sum += mesh_bytes_sent(all[i].mesh);
        /* Each root to the three that add up, each sum to the three others; the small ones. */
        uint64_t small = 3 * 3 * SHARDS * COUNT * sizeof(float) + 3 * 4 * sizeof(uint64_t);
        uint64_t boards = 4 * 3 * (BEFORE + AFTER) * sizeof(float);
        assert_int_equal(sum, 2 * 3 * FLOATS * sizeof(float) + small + boards);
        workers_end(all, 4);
    }
}

static void wrong_rosters_are_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    static struct worker one;
    struct mesh_peer list[2];

    worker_start(&one, 1, SHARED);
    list[0] = list[1] = one.peer;
    share_out(list, 2);
    assert_fails(mesh_enter(one.mesh, 1, list, 2, 0, 100, &err), ERR_INVALID);  /* twice */
    list[1].id = 2;
    list[1].to = 7;
    assert_fails(mesh_enter(one.mesh, 1, list, 2, 0, 100, &err), ERR_INVALID);  /* none for 7 */
    list[1].from = 3;
    list[1].to = 8;
    assert_fails(mesh_enter(one.mesh, 1, list, 2, 0, 100, &err), ERR_INVALID);  /* two for 3 */
    share_out(list, 1);
    assert_ok(mesh_enter(one.mesh, 1, list, 1, 0, 100, &err));
    assert_fails(mesh_enter(one.mesh, 1, list, 1, 0, 100, &err), ERR_INVALID);
    mesh_free(one.mesh);
    mesh_free(NULL);
}

CHECK_MAIN(a_process_that_is_killed_is_noticed_at_once,
           a_process_that_hangs_is_noticed_by_its_silence,
           any_number_of_workers_gives_the_same_sums, workers_come_and_go,
           a_link_that_the_other_has_closed_is_made_anew,
           an_abort_ends_every_wait_and_the_next_generation_goes_on,
           a_post_that_came_too_late_is_nobodys,
           what_is_shown_has_come_before_the_reduce_begins, what_left_early_is_counted,
           what_was_shown_is_gone_with_its_generation,
           one_that_dies_is_told_and_the_others_go_on, one_comes_back_as_another,
           one_that_was_left_out_can_tell,
           one_that_cannot_be_reached_is_told,
           a_state_is_copied_to_those_who_lack_it, a_stranger_at_the_door_stops_nobody,
           the_bytes_of_a_step_are_what_the_bound_says, wrong_rosters_are_refused)
