/* Whether a whole choice of rows has room, gang by gang. */
#ifndef ISONOMY_PACKING_H
#define ISONOMY_PACKING_H
#include <string.h>

#include "auction.h"

enum fit { NO, FITS, UNKNOWN };

struct packing {
    const struct auction *in;
    int32_t *load;                   /* [dims] */
    int32_t *left, *in_rack;         /* [hosts], [racks] GPUs */
    int32_t *on_machines, *in_racks; /* [sizes] gangs to pack */
    int32_t *at_host, *at_rack;      /* [sizes * hosts], [sizes * racks]: where they went */
};

static bool packing_alloc(struct packing *p, const struct auction *in) {
    p->in = in;
    p->load = room_for((size_t)in->dims, sizeof(int32_t));
    p->left = room_for((size_t)in->hosts, sizeof(int32_t));
    p->in_rack = room_for((size_t)in->racks, sizeof(int32_t));
    p->on_machines = room_for((size_t)in->sizes, sizeof(int32_t));
    p->in_racks = room_for((size_t)in->sizes, sizeof(int32_t));
    return p->load && p->left && p->in_rack && p->on_machines && p->in_racks;
}

static void packing_free(struct packing *p) {
    free(p->load);
    free(p->left);
    free(p->in_rack);
    free(p->on_machines);
    free(p->in_racks);
}

static int units(int gpus, int s) { return gpus >= 0 ? gpus / s : -((s - 1 - gpus) / s); }

static int new_units(const struct auction *in, int j, int l) {
    int level = in->level[l];
    bool counts = level > 0 ? in->scope[j] == MACHINE : in->scope[j] != CLUSTER;
    counts = counts && in->size_type[in->size[j]] == in->dim_type[l];
    return counts && in->gangs[j] ? in->gangs[j] * (in->size_gpus[in->size[j]] / abs(level)) : 0;
}

/* Keeps the gangs of row j where they are; `room` loses the units that this breaks beyond what `use` counts. */
static bool keep(const struct auction *in, int j, int32_t *left, int32_t *in_rack, int32_t *room) {
    if (in->pin_first[j] == in->pin_first[j + 1]) return true;
    for (int l = 0; room && l < in->dims; l++)
        if (in->level[l]) room[l] += in->use[j * in->dims + l] - new_units(in, j, l);
    for (int k = in->pin_first[j]; k < in->pin_first[j + 1]; k++) {
        int h = in->pin_host[k], r = in->rack[h], n = in->pin_gpus[k];
        for (int l = 0; room && l < in->dims; l++) {
            int s = in->dim_type[l] == in->host_type[h] ? in->level[l] : 0;
            if (s > 0) room[l] -= units(left[h], s) - units(left[h] - n, s);
            if (s < 0) room[l] -= units(in_rack[r], -s) - units(in_rack[r] - n, -s);
        }
        left[h] -= n, in_rack[r] -= n;
        if (left[h] < 0) return false;
    }
    return true;
}

static void whole_offer(const struct auction *in, int32_t *left, int32_t *in_rack) {
    memcpy(left, in->free_gpus, sizeof(int32_t) * (size_t)in->hosts);
    memset(in_rack, 0, sizeof(int32_t) * (size_t)in->racks);
    for (int h = 0; h < in->hosts; h++) in_rack[in->rack[h]] += left[h];
}

/* Up to `count` gangs of size k on machines, first fit; with `spare` > 0 only into what racks have beyond
 * multiples of `spare` GPUs. Returns how many are left. */
static int on_machines(struct packing *p, int k, int count, int spare) {
    const struct auction *in = p->in;
    int gpus = in->size_gpus[k];
    for (int h = 0; h < in->hosts && count; h++) {
        if (in->host_type[h] != in->size_type[k]) continue;
        int r = in->rack[h], n = p->left[h] / gpus;
        if (spare > 0 && p->in_rack[r] % spare / gpus < n) n = p->in_rack[r] % spare / gpus;
        if (n > count) n = count;
        if (n <= 0) continue;
        count -= n;
        p->left[h] -= n * gpus, p->in_rack[r] -= n * gpus;
        p->at_host[k * in->hosts + h] += n;
    }
    return count;
}

/* Packs the counted gangs, largest first: those on machines, then those in racks, which may be cut inside. */
static enum fit pack(struct packing *p, const int32_t *choice, bool spread) {
    const struct auction *in = p->in;
    whole_offer(in, p->left, p->in_rack);
    for (int i = 0; i < in->apps; i++)
        if (!keep(in, choice[i], p->left, p->in_rack, NULL)) return NO;
    memset(p->at_host, 0, sizeof(int32_t) * (size_t)in->sizes * (size_t)in->hosts);
    memset(p->at_rack, 0, sizeof(int32_t) * (size_t)in->sizes * (size_t)in->racks);
    for (int k = 0; k < in->sizes; k++) {
        int count = p->on_machines[k];
        for (int t = k - 1; spread && count && t >= 0; t--) /* what is spare for the next larger gang in a rack first */
            if (p->in_racks[t] && in->size_type[t] == in->size_type[k]) count = on_machines(p, k, count, in->size_gpus[t]);
        if (on_machines(p, k, count, 0)) return in->chain ? NO : UNKNOWN;
    }
    for (int k = 0; k < in->sizes; k++) {
        int count = p->in_racks[k];
        for (int r = 0; r < in->racks && count; r++) {
            if (in->rack_type[r] != in->size_type[k]) continue;
            int n = p->in_rack[r] / in->size_gpus[k];
            if (n > count) n = count;
            count -= n;
            p->in_rack[r] -= n * in->size_gpus[k];
            p->at_rack[k * in->racks + r] += n;
        }
        if (count) return UNKNOWN;
    }
    return FITS;
}

/* Whether a whole choice has room. Where sizes divide each other, nothing is kept and no gang is in a rack,
 * the dims say it all. */
static enum fit fits(struct packing *p, const int32_t *choice) {
    const struct auction *in = p->in;
    bool pins = false, racks = false;
    memset(p->load, 0, sizeof(int32_t) * (size_t)in->dims);
    memset(p->on_machines, 0, sizeof(int32_t) * (size_t)in->sizes);
    memset(p->in_racks, 0, sizeof(int32_t) * (size_t)in->sizes);
    for (int i = 0; i < in->apps; i++) {
        int j = choice[i];
        for (int l = 0; l < in->dims; l++) p->load[l] += in->use[j * in->dims + l];
        pins |= in->pin_first[j] < in->pin_first[j + 1];
        if (!in->gangs[j]) continue;
        if (in->scope[j] == MACHINE) p->on_machines[in->size[j]] += in->gangs[j];
        if (in->scope[j] == RACK) p->in_racks[in->size[j]] += in->gangs[j], racks = true;
    }
    for (int l = 0; l < in->dims; l++)
        if (p->load[l] > in->room[l]) return NO;
    if (in->chain && !pins && !racks) return FITS;
    enum fit found = pack(p, choice, racks);
    return found == UNKNOWN && racks ? pack(p, choice, false) : found;
}

#endif
