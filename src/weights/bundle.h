/* bundle.h: a model of the store as one tar file (ustar), for machines without a network.
 *
 * The first entry, mere-bundle.json, lists name, bytes and SHA-256 of each file that follows as
 * <owner>/<repo>/<name>; reading checks them as a pull does. `tar -x` in the store does too,
 * without the checks. Limits when reading: a manifest of BUNDLE_MANIFEST_MAX bytes, PULL_FILES_MAX
 * files, regular files with plain names only. */
#ifndef MERE_WEIGHTS_BUNDLE_H
#define MERE_WEIGHTS_BUNDLE_H

#include "weights/pull.h"

enum { BUNDLE_MANIFEST_MAX = 1 << 20, BUNDLE_NAME_MAX = 100 };

/* Writes `path` (as a whole: it appears when it is complete) with the result of a pull. o->progress
 * is told of CHECKING, then FETCHING. ERR_FIT: the disk is full. */
MUST_CHECK bool bundle_write(Arena *a, const PullOptions *o, const PullResult *model,
                             const char *path, Error *err);
/* Puts the model of a bundle into the store. Errors as pull_model, which this does without a
 * network. `name` as in the bundle. */
MUST_CHECK bool bundle_read(Arena *a, const PullOptions *o, const char *path, PullResult *out,
                            Error *err);

#endif
