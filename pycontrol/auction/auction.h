/* An auction as the solver gets it, and what its parts share. */
#ifndef ISONOMY_AUCTION_H
#define ISONOMY_AUCTION_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EPS 1e-9 /* of the objective: what is closer than this is equal */

enum { MACHINE = 1, RACK = 2, CLUSTER = 3 };

struct auction {
    int32_t apps, rows, dims, hosts, racks, sizes;
    int32_t chain;            /* gang sizes divide each other, so packing the largest first is exact */
    const int32_t *first;     /* [apps + 1]: rows first[i] .. first[i + 1] - 1, best gain first, "nothing" last */
    const double *gain;       /* [rows] */
    const int32_t *use;       /* [rows * dims], row by row */
    const int32_t *room;      /* [dims] */
    const int32_t *level;     /* [dims]: s for units of s on machines, -s for those in racks, 0 otherwise */
    const int32_t *dim_type;  /* [dims]: the GPU type that a level is about */
    const int32_t *gangs;     /* [rows]: new gangs */
    const int32_t *size;      /* [rows]: index of their size in size_gpus */
    const int32_t *scope;     /* [rows] */
    const int32_t *size_gpus; /* [sizes], descending */
    const int32_t *size_type; /* [sizes]: the GPU type of these gangs; below 0, in no level: any */
    const int32_t *pin_first; /* [rows + 1]: its kept GPUs by host */
    const int32_t *pin_host;
    const int32_t *pin_gpus;
    const int32_t *free_gpus; /* [hosts]; the hosts of a rack are neighbours */
    const int32_t *host_type; /* [hosts] */
    const int32_t *rack;      /* [hosts]; all its hosts are of one type */
    const int32_t *rack_type; /* [racks] */
};

static void *room_for(size_t n, size_t each) { return calloc(n ? n : 1, each); }

/* Whether every index lies inside its array, and "nothing" uses nothing. */
static bool well_formed(const struct auction *in) {
    if (in->apps < 1 || in->rows < in->apps || in->dims < 1 || in->hosts < 1 || in->racks < 1 || in->sizes < 1)
        return false;
    if (in->first[0] != 0 || in->first[in->apps] != in->rows || in->pin_first[0] != 0) return false;
    for (int i = 0; i < in->apps; i++)
        if (in->first[i] >= in->first[i + 1]) return false;
    for (int j = 0; j < in->rows; j++) {
        if (in->size[j] < 0 || in->size[j] >= in->sizes || in->pin_first[j] > in->pin_first[j + 1]) return false;
        for (int k = in->pin_first[j]; k < in->pin_first[j + 1]; k++)
            if (in->pin_host[k] < 0 || in->pin_host[k] >= in->hosts) return false;
        for (int l = 0; l < in->dims; l++)
            if (in->use[j * in->dims + l] < 0) return false;
    }
    for (int i = 0; i < in->apps; i++)
        for (int l = 0; l < in->dims; l++)
            if (in->use[(in->first[i + 1] - 1) * in->dims + l]) return false;
    for (int k = 0; k < in->sizes; k++)
        if (in->size_gpus[k] < 1) return false;
    for (int h = 0; h < in->hosts; h++)
        if (in->rack[h] < 0 || in->rack[h] >= in->racks || in->free_gpus[h] < 0) return false;
    return true;
}

#endif
