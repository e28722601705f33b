/* protocols/storage.h - Cloud Storage's JSON API over server/objects.h
 *
 * Buckets and objects, uploads in one request (media, multipart) or several (resumable), downloads
 * with ranges, lists, copies, compose, batch. What real clients send, and what breaks them, decided
 * its shape: the last answer of an upload always has crc32c and md5Hash; numbers of 64 bits are
 * texts; Location, mediaLink and selfLink repeat the address that the client came by.
 */
#ifndef MUSTER_PROTOCOLS_STORAGE_H
#define MUSTER_PROTOCOLS_STORAGE_H

#include "server/http.h"

extern const struct protocol protocol_storage;

#endif
