/* cli/layers.c - a model as a table for people */
#include "cli/layers.h"

#include <string.h>

static long params_of(const struct plan *p, const char *name)
{
    size_t n = strlen(name);
    long count = 0;

    for (int i = 0; n && i < p->n_params; i++)
        if (strncmp(p->param[i]->name, name, n) == 0 && p->param[i]->name[n] == '.' &&
            !strchr(p->param[i]->name + n + 1, '.'))
            count += p->param[i]->count;
    return count;
}

static void shape_text(const struct node *n, char *out, size_t size)
{
    if (n->h * n->w > 1)
        snprintf(out, size, "%d x %d x %d", n->c, n->h, n->w);
    else
        snprintf(out, size, "%d", n->c);
}

void layers_print(const struct graph *g, const struct plan *p, FILE *to)
{
    long all = 0, trained = 0;
    char shape[64];
    int width = 12;

    for (int i = 0; i < g->n; i++)
        if ((int)strlen(g->node[i].name) > width)
            width = (int)strlen(g->node[i].name);
    fprintf(to, "%-*s %-12s %-18s %12s\n", width, "layer", "kind", "output", "parameters");
    for (int i = 0; i < g->n; i++) {
        const struct node *n = &g->node[i];
        long count = params_of(p, n->name);
        shape_text(n, shape, sizeof shape);
        fprintf(to, "%-*s %-12s %-18s %12ld\n", width, n->name[0] ? n->name : "-",
                graph_word(n->op), shape, count);
    }
    for (int i = 0; i < p->n_params; i++) {
        all += p->param[i]->count;
        trained += p->param[i]->trained ? p->param[i]->count : 0;
    }
    fprintf(to, "parameters %ld, trained %ld; memory for a batch of %d: %.1f MB; %d thread%s, %s\n",
            all, trained, p->batch, (double)plan_bytes(p) / 1e6, p->threads,
            p->threads == 1 ? "" : "s", isa_name(p->isa));
}
