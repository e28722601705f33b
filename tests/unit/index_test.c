/* tests/unit/index_test.c - what a builder is told of package indexes, and links of their pages */
#include "drivers/index.h"

#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

static void set(void *arg, const char *name, const char *value)
{
    buf_printf(arg, "%s=%s|", name, value);
}

static char *told(char *const *env, bool *out_secret)
{
    struct err err = { 0 };
    OWN(index) x = NULL;
    struct buf b = BUF_INIT;

    assert_ok(index_new(env, &x, &err));
    *out_secret = index_wants_relay(x);
    buf_text(&b, "");
    index_settings(x, set, &b);
    return buf_take(&b);
}

static void settings_without_a_secret_are_handed_on(void **state)
{
    (void)state;
    char *const env[] = { "PIP_INDEX_URL=https://p.example/simple", "PIP_FIND_LINKS=/a /b",
                          "UV_INDEX=torch=https://t.example/w", "PIP_PRE=1", "HOME=/root",
                          "PIP_CONFIG_FILE=/etc/x", "UV_PUBLISH_TOKEN=t", NULL };
    bool secret;
    char *text = told(env, &secret);
    assert_false(secret);
    assert_string_equal(text, "PIP_INDEX_URL=https://p.example/simple/|PIP_FIND_LINKS=/a /b|"
                              "PIP_PRE=1|UV_INDEX=torch=https://t.example/w/|");
    free(text);
}

static void an_index_or_proxy_on_loopback_is_reached_by_the_relay(void **state)
{
    (void)state;
    static char *const local[] = { "PIP_INDEX_URL=http://127.0.0.1:3141/root/pypi",
                                   "UV_INDEX=mine=http://localhost/simple",
                                   "PIP_EXTRA_INDEX_URL=http://[::1]:80/simple",
                                   "https_proxy=http://127.0.0.1:3128", "http_proxy=localhost:1" };
    static char *const others[] = { "PIP_INDEX_URL=http://127.example/simple",
                                    "PIP_INDEX_URL=http://localhost.example/simple",
                                    "https_proxy=http://proxy.example:3128" };
    bool relayed;

    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) {
        free(told((char *const[]){ local[i], NULL }, &relayed));
        assert_true(relayed);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        free(told((char *const[]){ others[i], NULL }, &relayed));
        assert_false(relayed);
    }
}

static void a_password_anywhere_is_noticed_and_never_told(void **state)
{
    (void)state;
    static char *const one[] = {
        "PIP_INDEX_URL=https://u:hush@p.example/simple",
        "PIP_EXTRA_INDEX_URL=https://a.example/s https://hush@p.example:8443/s",
        "PIP_FIND_LINKS=/a https://u:hush@p.example/links.html",
        "UV_FIND_LINKS=/a,https://u:hush@p.example/links.html",
        "UV_DEFAULT_INDEX=https://u:hush%40x@p.example/simple",
        "UV_INDEX=mine=https://u:hush@p.example/simple",
        "https_proxy=http://u:hush@proxy.example:3128",
        "PIP_PROXY=http://u:hush@proxy.example:3128",
    };
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++) {
        char *const env[] = { one[i], "PIP_CLIENT_CERT=/hush.pem", NULL };
        bool secret;
        char *text = told(env, &secret);
        if (!secret || strstr(text, "hush"))
            fail_msg("%s: %s", one[i], text);
        free(text);
    }
    char *const named[] = { "UV_INDEX=my-own=https://p.example/simple", "UV_INDEX_MY_OWN_USERNAME=u",
                            "UV_INDEX_MY_OWN_PASSWORD=hush", NULL };
    bool secret;
    char *text = told(named, &secret);
    assert_true(secret);
    assert_null(strstr(text, "hush"));
    free(text);
}

static void links_are_resolved_as_a_browser_does(void **state)
{
    (void)state;
    static const struct { const char *base, *link, *want; } cases[] = {
        { "https://h/simple/p/", "../../f/p-1.whl#sha256=1", "https://h/f/p-1.whl" },
        { "https://h/simple/p/", "p-1.whl?x=1#y", "https://h/simple/p/p-1.whl?x=1" },
        { "https://h/simple/p/", "/f/p-1.whl", "https://h/f/p-1.whl" },
        { "https://h/simple/p/", "//g/f", "https://g/f" },
        { "https://h/simple/p/", "http://g:81/./f/../e", "http://g:81/e" },
        { "https://h/simple", "x", "https://h/x" },
        { "https://h", "x", "https://h/x" },
        { "https://h/a/b", "../../../../x", "https://h/x" },
        { "https://h/a/b/", "..", "https://h/a/" },
        { "https://h/a/", "", "https://h/a/" },
        { "https://h/a/", "javascript:alert(1)", NULL },
        { "https://h/a/", "file:///etc/passwd", NULL },
        { "file:///a/", "x", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *url = index_resolve(cases[i].base, cases[i].link);
        if (!cases[i].want != !url || (url && strcmp(url, cases[i].want)))
            fail_msg("%s on %s: %s, not %s", cases[i].link, cases[i].base, url ? url : "nothing",
                     cases[i].want ? cases[i].want : "nothing");
        free(url);
    }
}

static void credentials_are_for_their_own_origin(void **state)
{
    (void)state;
    assert_true(index_same_origin("https://h/a", "https://u:p@H:443/b"));
    assert_true(index_same_origin("http://[::1]:80/a", "http://[::1]/"));
    assert_false(index_same_origin("https://h/", "http://h/"));
    assert_false(index_same_origin("https://h/", "https://h:8443/"));
    assert_false(index_same_origin("https://h/", "https://h.example/"));
    assert_false(index_same_origin("https://h@g/", "https://h/"));
    assert_false(index_same_origin("gs://h/", "gs://h/"));
}

static void name(void *arg, const char *url, struct buf *out)
{
    (void)arg;
    buf_printf(out, "[%s]", url);
}

static void a_page_keeps_all_but_its_links(void **state)
{
    (void)state;
    static const struct { const char *html, *want; } cases[] = {
        { "<p><a href=\"x.whl#sha256=1\" data-requires-python='&gt;=3'>x</a>",
          "<p><a href=\"[http://h/s/x.whl]#sha256=1\" data-requires-python='&gt;=3'>x</a>" },
        { "<A x HREF = 'a?b&amp;c&#x3d;1'>", "<A x HREF = '[http://h/s/a?b&#38;c=1]'>" },
        { "<a href=x.whl>", "<a href=[http://h/s/x.whl]>" },
        { "<a title=\"a > b\" href='y'>", "<a title=\"a > b\" href='[http://h/s/y]'>" },
        { "<abbr href='y'><a href='mailto:x'>", "<abbr href='y'><a href=''>" },
        { "<a href='x", "<a href='x" },
        { "<", "<" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        OWN_BUF out = BUF_INIT;
        index_rewrite(cases[i].html, strlen(cases[i].html), "http://h/s/", name, NULL, &out);
        assert_string_equal(out.data, cases[i].want);
    }
}

CHECK_MAIN(settings_without_a_secret_are_handed_on,
           an_index_or_proxy_on_loopback_is_reached_by_the_relay,
           a_password_anywhere_is_noticed_and_never_told,
           links_are_resolved_as_a_browser_does, credentials_are_for_their_own_origin,
           a_page_keeps_all_but_its_links)
