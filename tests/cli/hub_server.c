/* A hub for the scripts of this folder: hub_server REPO FOLDER [bytes a second] prints its port and
 * serves the folder's files until it is killed. */
#include "support/fake_hub.h"

#include "base/file.h"
#include "weights/dirlist.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static FakeHub hub;
    Arena a;
    Error err;
    const char *const *names;
    int n;
    arena_init(&a, "hub_server");
    if (argc < 3 || !dirlist_read(&a, argv[2], "", &names, &n, &err) || n > FAKE_FILES_MAX) {
        fprintf(stderr, "usage: hub_server REPO FOLDER [bytes a second]\n");
        return 2;
    }
    hub.repo = argv[1];
    for (int i = 0; i < n; i++) {
        Str data;
        const char *path = arena_printf(&a, &err, "%s/%s", argv[2], names[i]);
        if (!path || !file_read(&a, path, 1U << 30, &data, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        fake_hub_add(&hub, names[i], data.ptr, data.len)->bytes_s =
            argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    }
    if (!fake_hub_start(&hub))
        return 1;
    printf("%d\n", hub.port);
    (void)fflush(stdout);
    for (;;)
        pause();
}
