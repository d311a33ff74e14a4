#include "engine/devices.h"

#include "base/mem.h"
#include "device/device.h"
#include "engine/osmem.h"

#include <stdio.h>

enum { BACKENDS_MAX = 8 };

_Static_assert(sizeof(((MereDevice *)0)->id) == sizeof(((DeviceInfo *)0)->id) &&
                   sizeof(((MereDevice *)0)->name) == sizeof(((DeviceInfo *)0)->name) &&
                   sizeof(((MereDevice *)0)->driver) == sizeof(((DeviceInfo *)0)->driver) &&
                   sizeof(((MereDevice *)0)->arch) == sizeof(((DeviceInfo *)0)->arch) &&
                   sizeof(((MereDevice *)0)->pci) == sizeof(((DeviceInfo *)0)->pci) &&
                   sizeof(((MereDevice *)0)->features) == sizeof(((DeviceInfo *)0)->features) &&
                   sizeof(((MereDevice *)0)->advice) == sizeof(((DeviceInfo *)0)->advice),
               "texts of mere.h are as long as the devices'");

/* What devices_list gives out begins with it, so that the pointer finds its owner. */
typedef struct DevicesOwner {
    MereDevices list;
    MereDevice devices[BACKENDS_MAX * DEVICES_MAX];
    MereBackend backends[BACKENDS_MAX];
} DevicesOwner;

/* Both have the same size; what a driver gave may fill it. */
static void copy(char *to, const char *from, size_t size)
{
    memcpy(to, from, size);
    to[size - 1] = '\0';
}

static void fill(const DeviceInfo *from, MereDevice *to)
{
    *to = (MereDevice){.shared_memory = from->shared_memory,
                       .software = from->software,
                       .total_bytes = from->total_bytes,
                       .free_bytes = from->free_bytes};
    copy(to->id, from->id, sizeof to->id);
    copy(to->name, from->name, sizeof to->name);
    copy(to->driver, from->driver, sizeof to->driver);
    copy(to->arch, from->arch, sizeof to->arch);
    copy(to->pci, from->pci, sizeof to->pci);
    copy(to->features, from->features, sizeof to->features);
    copy(to->advice, from->advice, sizeof to->advice);
    /* The CPU's memory is the host's, and it keeps no books of it. */
    if (to->shared_memory && to->total_bytes == 0) {
        to->total_bytes = osmem_total();
        to->free_bytes = osmem_available();
    }
}

/* One chip through two interfaces has one address. */
static void mark_same(DevicesOwner *o)
{
    for (int i = 0; i < o->list.n_devices; i++)
        for (int j = 0; j < i && !*o->devices[i].same_as; j++)
            if (*o->devices[i].pci && strcmp(o->devices[i].pci, o->devices[j].pci) == 0)
                copy(o->devices[i].same_as, o->devices[j].id, sizeof o->devices[i].same_as);
}

static void mark_auto(DevicesOwner *o)
{
    const DeviceOps *ops;
    int index;
    Error err;
    if (!device_find(str_from("auto"), &ops, &index, &err))
        return;
    for (int i = 0, at = 0; i < o->list.n_backends; at += o->backends[i++].n)
        if (strcmp(o->backends[i].name, ops->name) == 0 && index < o->backends[i].n)
            o->devices[at + index].is_auto = true;
}

static void look(DevicesOwner *o, const DeviceOps *ops)
{
    DeviceInfo infos[DEVICES_MAX];
    Error err;
    int n = 0;
    MereBackend *b = &o->backends[o->list.n_backends++];
    snprintf(b->name, sizeof b->name, "%s", ops->name);
    if (!ops->list(infos, &n, &err)) {
        n = 0;
        snprintf(b->note, sizeof b->note, "%s", err.msg);
    } else if (n == 0) {
        snprintf(b->note, sizeof b->note, "%s", ops->absent ? ops->absent : "no such device");
    }
    b->n = n;
    for (int i = 0; i < n; i++)
        fill(&infos[i], &o->devices[o->list.n_devices++]);
}

bool devices_list(MereDevices **out, Error *err)
{
    DevicesOwner *o = mem_zalloc(sizeof *o);
    if (!o)
        return err_nomem(err, "devices", sizeof *o);
    int n;
    const DeviceOps *const *all = device_backends(&n);
    for (int i = 0; i < n && i < BACKENDS_MAX; i++)
        look(o, all[i]);
    mark_same(o);
    mark_auto(o);
    o->list.size = sizeof o->list;
    o->list.devices = o->devices;
    o->list.backends = o->backends;
    *out = &o->list;
    return true;
}

void devices_free(MereDevices *d)
{
    mem_free(d);
}
