/* drivers/way.h - the server's way in: how a job in a network namespace of its own reaches it
 *
 * A socket listens inside the job's namespace at the address that the job knows the server by. The
 * keeper holds it, and hands a copy to the server over DATA/way, a unix socket: the server accepts
 * from it as from its own, so nothing is relayed and nothing but the server is behind it. While no
 * server runs, connections wait in the socket's backlog; the next server gets the socket again,
 * whatever port it listens at itself.
 *
 * The server closes its copy when the keeper's connection to DATA/way ends.
 */
#ifndef MUSTER_DRIVERS_WAY_H
#define MUSTER_DRIVERS_WAY_H

#include <stdbool.h>

/* A listening socket that was handed over with one message, at most this many at a time. */
enum { WAY_SOCKETS = 4 };

struct way {
    int data_dir;               /* -1: there is nothing to hand over */
    const int *sockets;         /* borrowed */
    int n;
    int fd;                     /* to poll: the connection, or an inotify while there is none */
    bool connected;
};
#define WAY_INIT { .data_dir = -1, .fd = -1 }

/* Hands the sockets over, now or as soon as there is a server. */
void way_open(struct way *w, const char *data_dir, const int *sockets, int n);
/* When w->fd is readable: the server is gone, or one has come. */
void way_look(struct way *w);
void way_close(struct way *w);

/* The server's side. Opens DATA/way anew; returns a socket that listens, -1 with errno. */
int way_listen(const char *data_dir);
/* Removes DATA/way: a server that has ended leaves no socket behind in what its owner copies. */
void way_remove(const char *data_dir);
/* What came over a connection: how many sockets; 0: the keeper has gone; -1: nothing yet. */
int way_take(int connection, int out[WAY_SOCKETS]);

#endif
