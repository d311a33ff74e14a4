/* devices.h: the devices of this machine, found without opening one (mere_devices). */
#ifndef MERE_ENGINE_DEVICES_H
#define MERE_ENGINE_DEVICES_H

#include "base/str.h"
#include "mere.h"

/* ERR_NOMEM. What a driver says goes into its backend's note. */
MUST_CHECK bool devices_list(MereDevices **out, Error *err);
void devices_free(MereDevices *d); /* NULL is fine */

#endif
