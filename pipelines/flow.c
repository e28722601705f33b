/* pipelines/flow.c - a pipeline's text -> its flow document: which language, which documents */
#include "pipelines/flow.h"

#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "pipelines/graph.h"
#include "pipelines/package.h"

static const struct yaml_limits limits = { "a pipeline", PACKAGE_TEXT_MAX, 1000000 };

/* ------------------------------------------------------------------ JSON */

static int hex4(const char *s, const char *end, unsigned *out)
{
    unsigned n = 0;

    if (end - s < 4)
        return 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f'
                                                         ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            return 0;
        n = n * 16 + (unsigned)digit;
    }
    *out = n;
    return 1;
}

/* JSON is YAML but for one thing: it writes a character past U+FFFF as two escapes, a pair of
 * surrogates, which YAML refuses. The SDK sends a Workflow as JSON, so that an emoji in a
 * program's text comes that way. The pair is made the character itself. */
static int join_surrogates(const char *text, size_t n, struct buf *out, struct err *err)
{
    const char *end = text + n, *from = text;
    unsigned high, low;

    for (const char *p = text; p < end; p++) {
        if (*p != '\\' || p + 1 >= end)
            continue;
        if (p[1] != 'u' || !hex4(p + 2, end, &high) || high < 0xD800 || high > 0xDBFF ||
            end - p < 12 || p[6] != '\\' || p[7] != 'u' || !hex4(p + 8, end, &low) ||
            low < 0xDC00 || low > 0xDFFF) {
            p++;                /* past what is escaped: "\\ud83d" is no escape of a character */
            continue;
        }
        unsigned u = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        char utf8[4] = { (char)(0xF0 | u >> 18), (char)(0x80 | (u >> 12 & 63)),
                         (char)(0x80 | (u >> 6 & 63)), (char)(0x80 | (u & 63)) };
        buf_append(out, from, (size_t)(p - from));
        buf_append(out, utf8, 4);
        from = p + 12;
        p += 11;
    }
    buf_append(out, from, (size_t)(end - from));
    return buf_ok(out, err);
}

/* ------------------------------------------------------------------ which language */

static const char *word(const struct value *doc, const char *key)
{
    const struct value *v = value_find(doc, key);
    return v && v->kind == VALUE_SCALAR ? v->text : "";
}

static bool is_ir(const struct value *doc)
{
    return value_find(doc, "pipelineInfo") || value_find(doc, "schemaVersion") ||
           value_find(doc, "pipeline_spec") || value_find(doc, "pipelineSpec");
}

static int refuse(const struct value *doc, const char *name, struct err *err, const char *what)
{
    const struct value *kind = value_find(doc, "kind");
    return err_set(err, ERR_INVALID, "%s:%d: %s", name, kind ? kind->line : doc->line, what);
}

static int refuse_kind(const struct value *doc, const char *name, struct err *err)
{
    static const struct { const char *kind, *what; } known[] = {
        { "WorkflowTemplate", "a WorkflowTemplate is not run by itself; make it a Workflow" },
        { "ClusterWorkflowTemplate",
          "a ClusterWorkflowTemplate is not run by itself; make it a Workflow" },
        { "CronWorkflow",
          "a CronWorkflow is not read; make it a Workflow, and a recurring run of it" },
        { "WorkflowEventBinding", "events do not start workflows here" },
        { "TrainingJob", "a TrainingJob is run by a step: make it the manifest of a resource "
                         "template of a Workflow" },
    };
    const char *kind = word(doc, "kind");

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].kind, kind) == 0)
            return refuse(doc, name, err, known[i].what);
    if (*kind)
        return err_set(err, ERR_INVALID, "%s:%d: a %.60s is no pipeline; a package holds one "
                       "Workflow (apply the rest by itself)", name, value_find(doc, "kind")->line,
                       kind);
    return refuse(doc, name, err, "this is no pipeline: neither a Workflow (apiVersion, kind, "
                                  "spec) nor a PipelineSpec (pipelineInfo, root)");
}

/* The documents that are not empty: the pipeline, and for kfp 2 what follows it. */
static int compile(struct value *list, const char *name, json_t **out, struct err *err)
{
    struct value *doc = NULL, *second = NULL;

    for (struct value *v = list->child; v; v = v->next) {
        if (value_is_null(v))
            continue;
        if (doc && second)
            return refuse(v, name, err, "a third document begins here; a pipeline has one, with "
                                        "kfp 2 a second for its platform");
        if (doc)
            second = v;
        else
            doc = v;
    }
    if (!doc || doc->kind != VALUE_MAP)
        return err_set(err, ERR_INVALID, "%s:1: this is no pipeline: it is no map", name);
    if (is_ir(doc))
        return ir_compile(doc, second, name, out, err);
    if (strncmp(word(doc, "apiVersion"), "argoproj.io/", 12) != 0 ||
        strcmp(word(doc, "kind"), "Workflow") != 0)
        return refuse_kind(doc, name, err);
    if (second)
        return value_find(second, "kind") && strcmp(word(second, "kind"), "Workflow") != 0
                   ? refuse_kind(second, name, err)
                   : refuse(second, name, err, "a second Workflow; a package holds one");
    return argo_compile(doc, name, out, err);
}

int flow_compile(const char *name, const char *text, size_t n, json_t **out, struct err *err)
{
    OWN_BUF joined = BUF_INIT;
    OWN(value) list = NULL;
    size_t blank = 0;

    while (blank < n && strchr(" \t\r\n", text[blank]) && text[blank])
        blank++;
    if (blank < n && text[blank] == '{' && n <= PACKAGE_TEXT_MAX) {
        if (join_surrogates(text, n, &joined, err) < 0)
            return -(int)err->code;
        text = joined.data;
        n = joined.n;
    }
    if (yaml_parse_all(text, n, name, &limits, &list, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *flow = NULL;
    if (compile(list, name, &flow, err) < 0)
        return -(int)err->code;
    if (run_graph_check(flow, err) < 0)
        return err_add(err, "%s", name);
    *out = TAKE(flow);
    return 0;
}

/* ------------------------------------------------------------------ paths */

bool flow_climbs(const char *path)
{
    for (const char *p = path; *p; p += strcspn(p, "/"), p += *p == '/')
        if (*p == '/' || (strncmp(p, "..", 2) == 0 && (!p[2] || p[2] == '/')))
            return true;
    return false;
}
