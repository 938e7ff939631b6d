/* Exact winner determination and payments of one auction, by branch and bound.
 *
 * Each bidder takes one of its rows (the last one is "nothing"); a row uses some of a few rooms ("dims": all
 * GPUs, units of s GPUs on machines or in racks, queue limits). The relaxation that lets rows be mixed is a
 * linear program with one convexity row a bidder, so its simplex needs a basis of the dims alone (generalised
 * upper bounding, Dantzig and Van Slyke 1967). Any multipliers >= 0 give a valid bound, whatever the simplex
 * rounds; rows whose loss against the bound exceeds the gap to the best choice found are dropped, and only the
 * few that are left are branched on.
 *
 * Where the dims alone do not prove that gangs have room (kept gangs, racks, sizes that do not divide each
 * other) a choice is packed before it counts. One that cannot be packed, nor be proved not to fit, stays in the
 * bound: then bound > value, and the caller decides it otherwise.
 *
 * No global state; all memory belongs to one call. Values and bounds are sums of gains. */
#define _POSIX_C_SOURCE 199309L
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EPS 1e-9       /* of the objective: what is closer than this is equal */
#define PIVOT 1e-10
#define NUDGE 1e-7     /* right-hand sides are nudged by this, so that the simplex does not cycle */
#define PROMISING 12   /* columns that are priced between two looks at all */
#define FEW_ROWS 150   /* so many are searched at once */
#define FEW_NODES 200  /* for a search that only looks for a good choice */

enum { MACHINE = 1, RACK = 2, CLUSTER = 3 };
enum fit { NO, FITS, UNKNOWN };

struct auction {
    int32_t apps, rows, dims, hosts, racks, sizes;
    int32_t chain;            /* gang sizes divide each other, so packing the largest first is exact */
    const int32_t *first;     /* [apps + 1]: rows first[i] .. first[i + 1] - 1, best gain first, "nothing" last */
    const double *gain;       /* [rows] */
    const int32_t *use;       /* [rows * dims], row by row */
    const int32_t *room;      /* [dims] */
    const int32_t *level;     /* [dims]: s for units of s on machines, -s for those in racks, 0 otherwise */
    const int32_t *gangs;     /* [rows]: new gangs */
    const int32_t *size;      /* [rows]: index of their size in size_gpus */
    const int32_t *scope;     /* [rows] */
    const int32_t *size_gpus; /* [sizes], descending */
    const int32_t *pin_first; /* [rows + 1]: its kept GPUs by host */
    const int32_t *pin_host;
    const int32_t *pin_gpus;
    const int32_t *free_gpus; /* [hosts]; the hosts of a rack are neighbours */
    const int32_t *rack;      /* [hosts] */
};

struct lp { /* the relaxation over some bidders and rows; columns are scaled by dim */
    int n, m, rows;
    int *first, *app, *row, *origin; /* row, origin: which rows and bidders of the auction these are */
    double *a, *gain, *x, *v;        /* x: value of each row; v: gain less the price of what it uses */
    bool *on;
    double *b, *nudged, *u;          /* u: the convexity rows' right-hand sides, 1 nudged */
    int promising, promise[PROMISING];
    bool stale;                      /* whether v and best are those of older prices */
    int priced, *dim;                /* dims with a price, and the prices */
    double *price;
    double off;                      /* the cost of a row that is switched off: more than all gains */
    int *live, *live_first;          /* the rows to price, bidder by bidder */
    int *key, *basic;                /* basic[p] >= 0: a row; else slack of dim -1 - basic[p] */
    double *inv, *mat, *xb, *lambda, *w, *best;
    int *saved_key, *saved_basic;
};

struct solver {
    const struct auction *in;
    struct lp root, core;
    double *scale;                  /* [dims] */
    double end_s;
    int64_t nodes, nodes_max;
    bool stopped;
    double *main_v, *main_best;     /* [rows], [apps] at the prices of the auction with everybody */
    double main_bound;
    double value, open;             /* best value found; largest bound of what was not searched */
    int32_t *best, *choice;         /* [apps] rows */
    int32_t *fixed;                 /* [apps] the row of a bidder outside the core, or -1 */
    bool *on, *core_on;             /* [rows] allowed in the solve at hand */
    int32_t *load, *room, *core_room;
    int32_t *left, *in_rack, *core_left, *core_in_rack;
    int32_t *on_machines, *in_racks; /* [sizes] gangs to pack */
    int32_t *at_host, *at_rack;      /* [sizes * hosts], [sizes * racks]: where pack put them */
    int *trail;
    int trail_n;
    bool pins;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *room_for(size_t n, size_t each) { return calloc(n ? n : 1, each); }

/* ---- the relaxation ---- */

static bool lp_alloc(struct lp *lp, int n, int rows, int m) {
    size_t N = (size_t)n, R = (size_t)rows, M = (size_t)m;
    lp->m = m;
    lp->first = room_for(N + 1, sizeof(int));
    lp->app = room_for(R, sizeof(int));
    lp->row = room_for(R, sizeof(int));
    lp->origin = room_for(N, sizeof(int));
    lp->a = room_for(R * M, sizeof(double));
    lp->gain = room_for(R, sizeof(double));
    lp->x = room_for(R, sizeof(double));
    lp->v = room_for(R, sizeof(double));
    lp->on = room_for(R, sizeof(bool));
    lp->b = room_for(M, sizeof(double));
    lp->nudged = room_for(M, sizeof(double));
    lp->u = room_for(N, sizeof(double));
    lp->key = room_for(N, sizeof(int));
    lp->basic = room_for(M, sizeof(int));
    lp->inv = room_for(M * M, sizeof(double));
    lp->mat = room_for(M * M, sizeof(double));
    lp->xb = room_for(M, sizeof(double));
    lp->lambda = room_for(M, sizeof(double));
    lp->dim = room_for(M, sizeof(int));
    lp->price = room_for(M, sizeof(double));
    lp->live = room_for(R, sizeof(int));
    lp->live_first = room_for(N + 1, sizeof(int));
    lp->w = room_for(M, sizeof(double));
    lp->best = room_for(N, sizeof(double));
    lp->saved_key = room_for(N, sizeof(int));
    lp->saved_basic = room_for(M, sizeof(int));
    return lp->first && lp->app && lp->row && lp->origin && lp->a && lp->gain && lp->x && lp->v && lp->on && lp->b &&
           lp->nudged && lp->u && lp->key && lp->basic && lp->inv && lp->mat && lp->xb && lp->lambda && lp->w &&
           lp->best && lp->live && lp->live_first && lp->dim && lp->price && lp->saved_key && lp->saved_basic;
}

static void lp_free(struct lp *lp) {
    void *all[] = {lp->first, lp->app, lp->row,    lp->origin, lp->a,   lp->gain,   lp->x, lp->v,    lp->on,        lp->b,          lp->nudged,
                   lp->u,     lp->key, lp->basic,  lp->inv,    lp->mat, lp->lambda, lp->w, lp->best, lp->saved_key, lp->saved_basic, lp->xb,
                   lp->live, lp->live_first, lp->dim, lp->price};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
}

/* Takes over the bidders of the auction that have more than one row switched on. */
static void lp_fill(struct lp *lp, const struct auction *in, const bool *on, const double *scale, bool all) {
    lp->n = lp->rows = 0;
    lp->off = 1.0;
    for (int i = 0; i < in->apps; i++) {
        int count = 0;
        for (int j = in->first[i]; j < in->first[i + 1]; j++) count += on[j];
        if (count < 2 && !all) continue;
        lp->first[lp->n] = lp->rows;
        lp->origin[lp->n] = i;
        lp->off += 2.0 * in->gain[in->first[i]];
        lp->u[lp->n] = 1.0 + NUDGE * (0.5 + 0.5 * (double)((unsigned)i * 2654435761u % 1024u) / 1024.0);
        for (int j = in->first[i]; j < in->first[i + 1]; j++) {
            bool nothing = j == in->first[i + 1] - 1; /* kept even if off: the first basis needs it */
            if (!on[j] && !nothing && !all) continue;
            for (int l = 0; l < lp->m; l++) lp->a[lp->rows * lp->m + l] = in->use[j * lp->m + l] * scale[l];
            lp->gain[lp->rows] = in->gain[j];
            lp->app[lp->rows] = lp->n;
            lp->row[lp->rows] = j;
            lp->on[lp->rows++] = on[j];
        }
        lp->n++;
    }
    lp->first[lp->n] = lp->rows;
}

static void lp_room(struct lp *lp, const int32_t *room, const double *scale) {
    for (int l = 0; l < lp->m; l++) {
        lp->b[l] = room[l] * scale[l];
        lp->nudged[l] = lp->b[l] + NUDGE * (1.0 + 0.37 * l);
    }
}

static void lp_start(struct lp *lp) { /* everybody gets nothing: feasible for any room */
    for (int i = 0; i < lp->n; i++) lp->key[i] = lp->first[i + 1] - 1;
    for (int l = 0; l < lp->m; l++) lp->basic[l] = -1 - l;
}

/* Starts from the basis of the root, as far as it is about rows that are left. */
static void lp_inherit(struct lp *lp, const struct lp *root) {
    int *at = lp->live; /* written anew before it is read */
    int n = 0, p = 0;
    lp_start(lp);
    for (int j = 0; j < lp->rows; j++)
        if (lp->row[j] == root->key[lp->origin[lp->app[j]]]) lp->key[lp->app[j]] = j;
    for (int q = 0; q < root->m; q++) {
        if (root->basic[q] < 0) lp->basic[p++] = root->basic[q];
        for (int j = 0; root->basic[q] >= 0 && j < lp->rows; j++)
            if (lp->row[j] == root->basic[q] && lp->key[lp->app[j]] != j) at[n++] = j;
    }
    for (int k = 0; k < n && p < lp->m; k++) lp->basic[p++] = at[k];
    if (p < lp->m) lp_start(lp);
}

static double cost(const struct lp *lp, int j) { return lp->on[j] ? lp->gain[j] : -lp->off; }

/* Inverts the working basis (a column less that of its bidder's key) and finds the basic values. */
static bool lp_factor(struct lp *lp) {
    int m = lp->m;
    double *mat = lp->mat, *inv = lp->inv;
    memset(inv, 0, sizeof(double) * (size_t)m * (size_t)m);
    for (int p = 0; p < m; p++) {
        int j = lp->basic[p];
        inv[p * m + p] = 1.0;
        for (int l = 0; l < m; l++)
            mat[l * m + p] = j < 0 ? (double)(l == -1 - j) : lp->a[j * m + l] - lp->a[lp->key[lp->app[j]] * m + l];
    }
    for (int c = 0; c < m; c++) {
        int top = c;
        for (int r = c + 1; r < m; r++)
            if (fabs(mat[r * m + c]) > fabs(mat[top * m + c])) top = r;
        double pivot = mat[top * m + c];
        if (fabs(pivot) < PIVOT) return false;
        for (int k = 0; k < m; k++) {
            double t = mat[c * m + k], s = inv[c * m + k];
            mat[c * m + k] = mat[top * m + k] / pivot, inv[c * m + k] = inv[top * m + k] / pivot;
            if (top != c) mat[top * m + k] = t, inv[top * m + k] = s;
        }
        for (int r = 0; r < m; r++) {
            double f = mat[r * m + c];
            if (r == c || f == 0.0) continue;
            for (int k = 0; k < m; k++) mat[r * m + k] -= f * mat[c * m + k], inv[r * m + k] -= f * inv[c * m + k];
        }
    }
    double *rest = lp->w;
    memcpy(rest, lp->nudged, sizeof(double) * (size_t)m);
    for (int i = 0; i < lp->n; i++) {
        const double *a = lp->a + (size_t)lp->key[i] * (size_t)m;
        for (int l = 0; l < m; l++) rest[l] -= lp->u[i] * a[l];
    }
    for (int p = 0; p < m; p++) {
        lp->xb[p] = 0.0;
        for (int l = 0; l < m; l++) lp->xb[p] += inv[p * m + l] * rest[l];
    }
    return true;
}

static double key_value(const struct lp *lp, int i) {
    double x = lp->u[i];
    for (int p = 0; p < lp->m; p++)
        if (lp->basic[p] >= 0 && lp->app[lp->basic[p]] == i) x -= lp->xb[p];
    return x;
}

static bool lp_feasible(const struct lp *lp) {
    for (int p = 0; p < lp->m; p++) {
        if (lp->xb[p] < -1e-9) return false;
        if (lp->basic[p] >= 0 && key_value(lp, lp->app[lp->basic[p]]) < -1e-9) return false;
    }
    return true;
}

/* A row's gain less the price of what it uses. */
static double value_at(const struct lp *lp, int j) {
    const double *a = lp->a + (size_t)j * (size_t)lp->m;
    double v = cost(lp, j);
    for (int p = 0; p < lp->priced; p++) v -= lp->price[p] * a[lp->dim[p]];
    return v;
}

/* The rows that are switched on. */
static void lp_live(struct lp *lp) {
    int n = 0;
    for (int i = 0; i < lp->n; i++) {
        lp->live_first[i] = n;
        for (int j = lp->first[i]; j < lp->first[i + 1]; j++)
            if (lp->on[j]) lp->live[n++] = j;
    }
    lp->live_first[lp->n] = n;
}

/* The dims that cost something: few, as a rule. */
static void lp_priced(struct lp *lp) {
    lp->priced = 0;
    for (int l = 0; l < lp->m; l++)
        if (lp->lambda[l] != 0.0) lp->dim[lp->priced] = l, lp->price[lp->priced++] = lp->lambda[l];
}

/* Prices of the dims, and the slack that should enter (-1 - dim), or INT32_MAX. */
static int lp_lambda(struct lp *lp, double *most) {
    int m = lp->m, enter = INT32_MAX;
    for (int l = 0; l < m; l++) lp->lambda[l] = 0.0;
    for (int p = 0; p < m; p++) {
        int j = lp->basic[p];
        double c = j < 0 ? 0.0 : cost(lp, j) - cost(lp, lp->key[lp->app[j]]);
        if (c != 0.0)
            for (int l = 0; l < m; l++) lp->lambda[l] += c * lp->inv[p * m + l];
    }
    lp_priced(lp);
    *most = EPS / 10;
    for (int l = 0; l < m; l++)
        if (-lp->lambda[l] > *most) *most = -lp->lambda[l], enter = -1 - l;
    return enter;
}

/* The entering column: among the promising ones of the last look at all, as long as one of them gains; else of
 * all, with v of each row and the best of each bidder. INT32_MAX where none is left. */
static int lp_price(struct lp *lp) {
    double most, gain[PROMISING];
    int enter = lp_lambda(lp, &most);
    for (int k = 0; k < lp->promising; k++) {
        int j = lp->promise[k];
        double v = value_at(lp, j) - value_at(lp, lp->key[lp->app[j]]);
        if (v > most) most = v, enter = j;
    }
    lp->stale = enter != INT32_MAX && lp->promising;
    if (lp->stale) return enter;
    lp->promising = 0;
    for (int i = 0; i < lp->n; i++) {
        double top = -INFINITY, key = value_at(lp, lp->key[i]);
        int arg = -1;
        for (int k = lp->live_first[i]; k < lp->live_first[i + 1]; k++) {
            int j = lp->live[k];
            double v = lp->v[j] = value_at(lp, j);
            if (v > top) top = v, arg = j;
        }
        lp->best[i] = top;
        if (top - key <= EPS / 10) continue;
        if (top - key > most) most = top - key, enter = arg;
        int at = lp->promising;
        if (at < PROMISING) lp->promising++;
        else
            for (int k = at = 0; k < PROMISING; k++)
                if (gain[k] < gain[at]) at = k;
        if (at == lp->promising - 1 || top - key > gain[at]) lp->promise[at] = arg, gain[at] = top - key;
    }
    return enter;
}

/* One exchange; false if the basis cannot go on. */
static bool lp_exchange(struct lp *lp, int enter) {
    int m = lp->m, own = enter < 0 ? -1 : lp->app[enter], leave = -1, leave_key = -1;
    double step = INFINITY;
    for (int p = 0; p < m; p++) {
        lp->w[p] = 0.0;
        for (int l = 0; l < m; l++)
            lp->w[p] += lp->inv[p * m + l] *
                        (enter < 0 ? (double)(l == -1 - enter) : lp->a[enter * m + l] - lp->a[lp->key[own] * m + l]);
        if (lp->w[p] > PIVOT && lp->xb[p] / lp->w[p] < step) step = fmax(0.0, lp->xb[p] / lp->w[p]), leave = p;
    }
    for (int p = -1; p < m; p++) { /* a key's value falls as its bidder's other rows rise */
        int i = p < 0 ? own : lp->basic[p] < 0 ? -1 : lp->app[lp->basic[p]];
        if (i < 0) continue;
        double rate = i == own ? 1.0 : 0.0;
        for (int q = 0; q < m; q++)
            if (lp->basic[q] >= 0 && lp->app[lp->basic[q]] == i) rate -= lp->w[q];
        if (rate <= PIVOT) continue;
        double value = fmax(0.0, key_value(lp, i));
        if (value / rate < step) step = value / rate, leave = p, leave_key = i;
    }
    if (step == INFINITY) return false;
    if (leave_key < 0) {
        lp->basic[leave] = enter;
    } else if (leave_key == own) {
        lp->key[own] = enter;
    } else { /* another row of that bidder becomes its key */
        lp->key[leave_key] = lp->basic[leave];
        lp->basic[leave] = enter;
    }
    return true;
}

/* Solves the relaxation from the basis at hand; returns a bound that holds however far it came. */
static double lp_bound(struct lp *lp) {
    int limit = 20 * (lp->m + lp->n) + 200;
    lp_live(lp);
    lp->promising = 0;
    if (!lp_factor(lp) || !lp_feasible(lp)) {
        lp_start(lp);
        lp_factor(lp);
    }
    for (int k = 0;; k++) {
        int enter = lp_price(lp);
        if (enter == INT32_MAX || k == limit || !lp_exchange(lp, enter)) break;
        if (!lp_factor(lp)) {
            lp_start(lp);
            lp_factor(lp);
        }
    }
    double bound = 0.0;
    bool stale = lp->stale;
    for (int l = 0; l < lp->m; l++) {
        stale |= lp->lambda[l] < 0.0;
        lp->lambda[l] = fmax(0.0, lp->lambda[l]);
        bound += lp->lambda[l] * lp->b[l];
    }
    lp_priced(lp);
    for (int i = 0; i < lp->n; i++) {
        if (stale) {
            lp->best[i] = -INFINITY;
            for (int k = lp->live_first[i]; k < lp->live_first[i + 1]; k++) {
                int j = lp->live[k];
                lp->v[j] = value_at(lp, j);
                lp->best[i] = fmax(lp->best[i], lp->v[j]);
            }
        }
        bound += lp->best[i];
    }
    memset(lp->x, 0, sizeof(double) * (size_t)lp->rows);
    for (int i = 0; i < lp->n; i++) lp->x[lp->key[i]] = lp->u[i];
    for (int p = 0; p < lp->m; p++) {
        int j = lp->basic[p];
        if (j < 0) continue;
        lp->x[j] = lp->xb[p];
        lp->x[lp->key[lp->app[j]]] -= lp->xb[p];
    }
    return bound;
}

/* ---- packing ---- */

static int units(int gpus, int s) { return gpus >= 0 ? gpus / s : -((s - 1 - gpus) / s); }

static int new_units(const struct auction *in, int j, int level) {
    bool counts = level > 0 ? in->scope[j] == MACHINE : in->scope[j] != CLUSTER;
    return counts && in->gangs[j] ? in->gangs[j] * (in->size_gpus[in->size[j]] / abs(level)) : 0;
}

/* Keeps the gangs of row j where they are; `room` loses the units that this breaks beyond what `use` counts. */
static bool keep(const struct auction *in, int j, int32_t *left, int32_t *in_rack, int32_t *room) {
    if (in->pin_first[j] == in->pin_first[j + 1]) return true;
    for (int l = 0; room && l < in->dims; l++)
        if (in->level[l]) room[l] += in->use[j * in->dims + l] - new_units(in, j, in->level[l]);
    for (int k = in->pin_first[j]; k < in->pin_first[j + 1]; k++) {
        int h = in->pin_host[k], r = in->rack[h], n = in->pin_gpus[k];
        for (int l = 0; room && l < in->dims; l++) {
            int s = in->level[l];
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
static int on_machines(struct solver *s, int k, int count, int spare) {
    const struct auction *in = s->in;
    int gpus = in->size_gpus[k];
    for (int h = 0; h < in->hosts && count; h++) {
        int r = in->rack[h], n = s->left[h] / gpus;
        if (spare > 0 && s->in_rack[r] % spare / gpus < n) n = s->in_rack[r] % spare / gpus;
        if (n > count) n = count;
        if (n <= 0) continue;
        count -= n;
        s->left[h] -= n * gpus, s->in_rack[r] -= n * gpus;
        s->at_host[k * in->hosts + h] += n;
    }
    return count;
}

/* Packs the counted gangs, largest first: those on machines, then those in racks, which may be cut inside. */
static enum fit pack(struct solver *s, const int32_t *choice, bool spread) {
    const struct auction *in = s->in;
    whole_offer(in, s->left, s->in_rack);
    for (int i = 0; i < in->apps; i++)
        if (!keep(in, choice[i], s->left, s->in_rack, NULL)) return NO;
    memset(s->at_host, 0, sizeof(int32_t) * (size_t)in->sizes * (size_t)in->hosts);
    memset(s->at_rack, 0, sizeof(int32_t) * (size_t)in->sizes * (size_t)in->racks);
    for (int k = 0; k < in->sizes; k++) {
        int count = s->on_machines[k];
        for (int t = k - 1; spread && count && t >= 0; t--) /* what is spare for the next larger gang in a rack first */
            if (s->in_racks[t]) count = on_machines(s, k, count, in->size_gpus[t]);
        if (on_machines(s, k, count, 0)) return in->chain ? NO : UNKNOWN;
    }
    for (int k = 0; k < in->sizes; k++) {
        int count = s->in_racks[k];
        for (int r = 0; r < in->racks && count; r++) {
            int n = s->in_rack[r] / in->size_gpus[k];
            if (n > count) n = count;
            count -= n;
            s->in_rack[r] -= n * in->size_gpus[k];
            s->at_rack[k * in->racks + r] += n;
        }
        if (count) return UNKNOWN;
    }
    return FITS;
}

/* Whether a whole choice has room. Where sizes divide each other, nothing is kept and no gang is in a rack,
 * the dims say it all. */
static enum fit fits(struct solver *s, const int32_t *choice) {
    const struct auction *in = s->in;
    bool pins = false, racks = false;
    memset(s->load, 0, sizeof(int32_t) * (size_t)in->dims);
    memset(s->on_machines, 0, sizeof(int32_t) * (size_t)in->sizes);
    memset(s->in_racks, 0, sizeof(int32_t) * (size_t)in->sizes);
    for (int i = 0; i < in->apps; i++) {
        int j = choice[i];
        for (int l = 0; l < in->dims; l++) s->load[l] += in->use[j * in->dims + l];
        pins |= in->pin_first[j] < in->pin_first[j + 1];
        if (!in->gangs[j]) continue;
        if (in->scope[j] == MACHINE) s->on_machines[in->size[j]] += in->gangs[j];
        if (in->scope[j] == RACK) s->in_racks[in->size[j]] += in->gangs[j], racks = true;
    }
    for (int l = 0; l < in->dims; l++)
        if (s->load[l] > in->room[l]) return NO;
    if (in->chain && !pins && !racks) return FITS;
    enum fit found = pack(s, choice, racks);
    return found == UNKNOWN && racks ? pack(s, choice, false) : found;
}

/* ---- the search ---- */

static double worth(const struct solver *s, const int32_t *choice) {
    double value = 0.0;
    for (int i = 0; i < s->in->apps; i++) value += s->in->gain[choice[i]];
    return value;
}

/* Counts a choice if it is better than the best one and has room; true if it needs no more thought. */
static bool consider(struct solver *s, const int32_t *choice) {
    double value = worth(s, choice);
    if (value <= s->value) return true;
    enum fit found = fits(s, choice);
    if (found == FITS) {
        s->value = value;
        memcpy(s->best, choice, sizeof(int32_t) * (size_t)s->in->apps);
    }
    return found == FITS;
}

static void count_load(struct solver *s, const int32_t *choice) {
    const struct auction *in = s->in;
    memset(s->load, 0, sizeof(int32_t) * (size_t)in->dims);
    for (int i = 0; i < in->apps; i++)
        for (int l = 0; l < in->dims; l++) s->load[l] += in->use[choice[i] * in->dims + l];
}

/* Moves bidder i of a choice to row j if the rooms allow it. */
static bool move(struct solver *s, int32_t *choice, int i, int j) {
    const struct auction *in = s->in;
    const int32_t *use = in->use + (size_t)j * (size_t)in->dims;
    const int32_t *old = in->use + (size_t)choice[i] * (size_t)in->dims;
    for (int l = 0; l < in->dims; l++)
        if (s->load[l] + use[l] - old[l] > in->room[l]) return false;
    for (int l = 0; l < in->dims; l++) s->load[l] += use[l] - old[l];
    choice[i] = j;
    return true;
}

/* Better rows for one bidder at a time; s->choice is changed, and considered. */
static void improve(struct solver *s) {
    const struct auction *in = s->in;
    count_load(s, s->choice);
    for (int pass = 0, better = 1; better && pass < 3; pass++) {
        better = 0;
        for (int i = 0; i < in->apps; i++)
            for (int j = in->first[i]; j < s->choice[i]; j++)
                if (s->on[j] && in->gain[j] > in->gain[s->choice[i]] && move(s, s->choice, i, j)) better = 1;
    }
    consider(s, s->choice);
}

/* The root's relaxation made whole: its whole rows; for the bidders that it mixes, the row that its prices like
 * best among those with room; then what one bidder alone can gain. */
static void make_whole(struct solver *s) {
    const struct auction *in = s->in;
    const struct lp *root = &s->root;
    for (int i = 0; i < in->apps; i++) {
        s->choice[i] = in->first[i + 1] - 1;
        for (int j = in->first[i]; j < in->first[i + 1]; j++)
            if (s->on[j] && root->x[j] > 1.0 - 1e-3) s->choice[i] = j;
    }
    count_load(s, s->choice);
    for (int i = 0; i < in->apps; i++) {
        int nothing = in->first[i + 1] - 1;
        if (s->choice[i] != nothing || root->x[nothing] > 1.0 - 1e-3) continue;
        for (int j = in->first[i], best = -1; j <= nothing; j++) {
            if (j == nothing || !s->on[j] || (best >= 0 && root->v[j] <= root->v[best])) continue;
            if (move(s, s->choice, i, j)) best = j;
        }
    }
    improve(s);
}

/* Room for the core at a node: what kept gangs break is known for bidders with one row left. */
static bool node_room(struct solver *s) {
    const struct auction *in = s->in;
    struct lp *lp = &s->core;
    memcpy(s->room, s->core_room, sizeof(int32_t) * (size_t)in->dims);
    if (s->pins) {
        memcpy(s->left, s->core_left, sizeof(int32_t) * (size_t)in->hosts);
        memcpy(s->in_rack, s->core_in_rack, sizeof(int32_t) * (size_t)in->racks);
        for (int i = 0; i < lp->n; i++) {
            int count = 0, last = -1;
            for (int j = lp->first[i]; j < lp->first[i + 1]; j++)
                if (lp->on[j]) count++, last = lp->row[j];
            if (count == 1 && !keep(in, last, s->left, s->in_rack, s->room)) return false;
        }
    }
    for (int l = 0; l < in->dims; l++)
        if (s->room[l] < 0) return false;
    lp_room(lp, s->room, s->scale);
    return true;
}

static void switch_off(struct solver *s, int j) {
    s->core.on[j] = false;
    s->trail[s->trail_n++] = j;
}

static void restore(struct solver *s, int mark) {
    while (s->trail_n > mark) s->core.on[s->trail[--s->trail_n]] = true;
}

static bool out_of_time(struct solver *s) {
    s->nodes++;
    if (s->nodes >= s->nodes_max || now_s() >= s->end_s) s->stopped = true;
    return s->stopped;
}

/* The bidder to split: the most fractional; without one, a bidder with rows to choose from that uses most. */
static int branch_on(const struct lp *lp) {
    int pick = -1, most_rows = 1;
    double most = 1e-3;
    for (int i = 0; i < lp->n; i++) {
        double top = 0.0;
        for (int j = lp->first[i]; j < lp->first[i + 1]; j++) top = fmax(top, lp->x[j]);
        if (1.0 - top > most) most = 1.0 - top, pick = i;
    }
    for (int i = 0; pick < 0 && i < lp->n; i++) {
        int count = 0;
        for (int j = lp->first[i]; j < lp->first[i + 1]; j++) count += lp->on[j];
        if (count > most_rows) pick = i, most_rows = count;
    }
    return pick;
}

struct cut { /* rows that use at most `at` of a dim, or (dim < 0) one row: the lower part */
    int dim, row;
    double at;
};

static bool lower(const struct lp *lp, const struct cut *cut, int j) {
    return cut->dim < 0 ? j == cut->row : lp->a[j * lp->m + cut->dim] <= cut->at;
}

/* How to split bidder i: by what its mixed rows use of the room where the difference costs most. */
static struct cut split(const struct lp *lp, int i) {
    struct cut cut = {.dim = -1, .row = -1};
    double most = 0.0;
    for (int l = 0; l < lp->m; l++) {
        double mean = 0.0, low = INFINITY, high = -INFINITY;
        for (int j = lp->first[i]; j < lp->first[i + 1]; j++) {
            double a = lp->a[j * lp->m + l];
            if (!lp->on[j] || lp->x[j] < 1e-6) continue;
            mean += a * lp->x[j], low = fmin(low, a), high = fmax(high, a);
        }
        double spread = (high - low) * (lp->lambda[l] + 1e-6);
        if (spread > most && low < high) most = spread, cut.dim = l, cut.at = fmin(fmax(mean, low), high - 1e-9);
    }
    for (int j = lp->first[i]; cut.dim < 0 && j < lp->first[i + 1]; j++)
        if (lp->on[j] && (cut.row < 0 || lp->x[j] > lp->x[cut.row])) cut.row = j;
    return cut;
}

static void search(struct solver *s, double above);

static void child(struct solver *s, int i, const struct cut *cut, bool low, double bound) {
    struct lp *lp = &s->core;
    int mark = s->trail_n;
    for (int j = lp->first[i]; j < lp->first[i + 1]; j++)
        if (lp->on[j] && lower(lp, cut, j) != low) switch_off(s, j);
    search(s, bound);
    restore(s, mark);
}

/* Searches what is switched on in the core; `above` bounds it already. */
static void search(struct solver *s, double above) {
    struct lp *lp = &s->core;
    double base = 0.0;
    if (above <= s->value + EPS) return;
    if (out_of_time(s)) {
        s->open = fmax(s->open, above);
        return;
    }
    for (int i = 0; i < s->in->apps; i++)
        if (s->fixed[i] >= 0) base += s->in->gain[s->fixed[i]];
    if (!node_room(s)) return;
    double bound = fmin(above, base + lp_bound(lp));
    if (bound <= s->value + EPS) return;
    int mark = s->trail_n, mixed = -1;
    for (int i = 0; i < s->in->apps; i++) s->choice[i] = s->fixed[i];
    for (int i = 0; i < lp->n; i++) {
        int top = lp->first[i];
        for (int j = lp->first[i]; j < lp->first[i + 1]; j++)
            if (lp->x[j] > lp->x[top]) top = j;
        s->choice[lp->origin[i]] = lp->row[top];
        if (lp->x[top] < 1.0 - 1e-3) mixed = i;
        if (!lp->on[top]) mixed = i; /* no feasible mix */
    }
    if (mixed < 0 && consider(s, s->choice) && bound <= s->value + EPS) return;
    for (int i = 0; i < lp->n; i++)
        for (int j = lp->first[i]; j < lp->first[i + 1]; j++)
            if (lp->on[j] && bound - (lp->best[i] - lp->v[j]) <= s->value + EPS) switch_off(s, j);
    int i = branch_on(lp), count = 0;
    for (int j = i < 0 ? 0 : lp->first[i]; i >= 0 && j < lp->first[i + 1]; j++) count += lp->on[j];
    if (count < 2) { /* that bidder has one row left, or none: perhaps another has more */
        for (i = 0; i < lp->n; i++) {
            count = 0;
            for (int j = lp->first[i]; j < lp->first[i + 1]; j++) count += lp->on[j];
            if (count != 1) break;
        }
    }
    if (i >= 0 && i < lp->n && count == 0) {
        /* no row of this bidder can beat the best choice */
    } else if (i < 0 || i == lp->n) { /* one row each */
        for (int k = 0; k < lp->n; k++)
            for (int j = lp->first[k]; j < lp->first[k + 1]; j++)
                if (lp->on[j]) s->choice[lp->origin[k]] = lp->row[j];
        double value = worth(s, s->choice);
        if (value > s->value + EPS && !consider(s, s->choice) && fits(s, s->choice) == UNKNOWN)
            s->open = fmax(s->open, value);
    } else {
        struct cut cut = split(lp, i);
        double low = 0.0, high = 0.0;
        for (int j = lp->first[i]; j < lp->first[i + 1]; j++) *(lower(lp, &cut, j) ? &low : &high) += lp->x[j];
        child(s, i, &cut, low >= high, bound);
        child(s, i, &cut, low < high, bound);
    }
    restore(s, mark);
}

/* Drops the rows that no choice worth more than `least` can have, by the root's prices. */
static void drop(struct solver *s, double bound, double least) {
    const struct lp *root = &s->root;
    for (int i = 0; i < s->in->apps; i++)
        for (int j = s->in->first[i]; j < s->in->first[i + 1]; j++)
            if (s->on[j] && bound - (root->best[i] - root->v[j]) <= least) s->on[j] = false;
}

/* Searches the rows in s->on; bidders with one row left are settled first. */
static void search_core(struct solver *s, double bound) {
    const struct auction *in = s->in;
    memcpy(s->core_room, in->room, sizeof(int32_t) * (size_t)in->dims);
    whole_offer(in, s->core_left, s->core_in_rack);
    for (int i = 0; i < in->apps; i++) {
        int count = 0, last = -1;
        for (int j = in->first[i]; j < in->first[i + 1]; j++)
            if (s->on[j]) count++, last = j;
        s->fixed[i] = count == 1 ? last : -1;
        if (count == 0) return;
        if (count != 1) continue;
        if (!keep(in, last, s->core_left, s->core_in_rack, s->core_room)) return;
        for (int l = 0; l < in->dims; l++) s->core_room[l] -= in->use[last * in->dims + l];
    }
    lp_fill(&s->core, in, s->on, s->scale, false);
    lp_inherit(&s->core, &s->root);
    search(s, bound);
}

/* Rows of bidders that have a choice. */
static int rows_on(const struct solver *s) {
    int n = 0;
    for (int i = 0; i < s->in->apps; i++) {
        int count = 0;
        for (int j = s->in->first[i]; j < s->in->first[i + 1]; j++) count += s->on[j];
        n += count > 1 ? count : 0;
    }
    return n;
}

/* The best choice with the rows in s->on; the root's basis is the start. Returns a bound on it. */
static double solve(struct solver *s, double end_s, int64_t nodes) {
    const struct auction *in = s->in;
    struct lp *root = &s->root;
    s->end_s = end_s, s->nodes = 0, s->nodes_max = nodes, s->stopped = false, s->open = -INFINITY, s->trail_n = 0;
    memcpy(root->on, s->on, sizeof(bool) * (size_t)in->rows);
    lp_room(root, in->room, s->scale);
    double bound = lp_bound(root);
    for (int i = 0; i < in->apps; i++) { /* the relaxation may be whole, or nearly */
        int top = in->first[i + 1] - 1;
        for (int j = in->first[i]; j < in->first[i + 1]; j++)
            if (s->on[j] && root->x[j] > root->x[top]) top = j;
        s->choice[i] = top;
    }
    consider(s, s->choice);
    if (bound > s->value + EPS) make_whole(s);
    if (bound <= s->value + EPS) return s->value;
    /* First among the rows that lose little: a good choice is found soon, and fewer rows are left for the proof. */
    bool *all = s->core_on;
    drop(s, bound, s->value + EPS);
    for (double part = 1.0 / 16.0; part < 1.0 && bound > s->value + EPS && rows_on(s) > FEW_ROWS; part *= 4.0) {
        memcpy(all, s->on, sizeof(bool) * (size_t)in->rows);
        drop(s, bound, s->value + (1.0 - part) * (bound - s->value));
        s->nodes = 0, s->nodes_max = FEW_NODES;
        search_core(s, bound);
        s->stopped = false, s->open = -INFINITY;
        memcpy(s->on, all, sizeof(bool) * (size_t)in->rows);
        drop(s, bound, s->value + EPS);
    }
    s->nodes_max = nodes;
    search_core(s, bound);
    return fmax(s->value, s->open > s->value + EPS ? s->open : s->value);
}

static void save(struct solver *s) {
    struct lp *root = &s->root;
    memcpy(root->saved_key, root->key, sizeof(int) * (size_t)root->n);
    memcpy(root->saved_basic, root->basic, sizeof(int) * (size_t)root->m);
    memcpy(s->main_v, root->v, sizeof(double) * (size_t)root->rows);
    memcpy(s->main_best, root->best, sizeof(double) * (size_t)root->n);
    s->main_bound = 0.0;
    for (int l = 0; l < root->m; l++) s->main_bound += root->lambda[l] * root->b[l];
    for (int i = 0; i < root->n; i++) s->main_bound += root->best[i];
}

/* The best choice without bidder i: what the others won still fits, and the prices still give a bound. */
static double solve_without(struct solver *s, int i, const int32_t *choice, double end_s, int64_t nodes) {
    const struct auction *in = s->in;
    struct lp *root = &s->root;
    int nothing = in->first[i + 1] - 1;
    for (int j = 0; j < in->rows; j++) s->on[j] = j < in->first[i] || j >= nothing;
    memcpy(root->key, root->saved_key, sizeof(int) * (size_t)root->n);
    memcpy(root->basic, root->saved_basic, sizeof(int) * (size_t)root->m);
    memcpy(root->v, s->main_v, sizeof(double) * (size_t)root->rows);
    memcpy(root->best, s->main_best, sizeof(double) * (size_t)root->n);
    memcpy(s->best, choice, sizeof(int32_t) * (size_t)in->apps);
    s->best[i] = nothing;
    s->value = worth(s, s->best);
    double bound = s->main_bound - root->best[i] + root->v[nothing];
    root->best[i] = root->v[nothing];
    drop(s, bound, s->value + EPS);
    memcpy(s->choice, s->best, sizeof(int32_t) * (size_t)in->apps);
    improve(s);
    drop(s, bound, s->value + EPS);
    return fmin(bound, solve(s, end_s, nodes));
}

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

static bool prepare(struct solver *s) {
    const struct auction *in = s->in;
    size_t A = (size_t)in->apps, R = (size_t)in->rows, D = (size_t)in->dims, H = (size_t)in->hosts;
    size_t K = (size_t)in->racks, S = (size_t)in->sizes;
    bool ok = lp_alloc(&s->root, in->apps, in->rows, in->dims) && lp_alloc(&s->core, in->apps, in->rows, in->dims);
    s->scale = room_for(D, sizeof(double));
    s->best = room_for(A, sizeof(int32_t));
    s->choice = room_for(A, sizeof(int32_t));
    s->fixed = room_for(A, sizeof(int32_t));
    s->on = room_for(R, sizeof(bool));
    s->core_on = room_for(R, sizeof(bool));
    s->load = room_for(D, sizeof(int32_t));
    s->room = room_for(D, sizeof(int32_t));
    s->core_room = room_for(D, sizeof(int32_t));
    s->left = room_for(H, sizeof(int32_t));
    s->core_left = room_for(H, sizeof(int32_t));
    s->in_rack = room_for(K, sizeof(int32_t));
    s->core_in_rack = room_for(K, sizeof(int32_t));
    s->on_machines = room_for(S, sizeof(int32_t));
    s->in_racks = room_for(S, sizeof(int32_t));
    s->trail = room_for(R, sizeof(int));
    s->main_v = room_for(R, sizeof(double));
    s->main_best = room_for(A, sizeof(double));
    if (!ok || !s->scale || !s->best || !s->choice || !s->fixed || !s->on || !s->load || !s->room || !s->core_room ||
        !s->left || !s->core_left || !s->in_rack || !s->core_in_rack || !s->on_machines || !s->in_racks || !s->trail || !s->core_on || !s->main_v ||
        !s->main_best)
        return false;
    for (int l = 0; l < in->dims; l++) {
        int most = 1;
        for (int j = 0; j < in->rows; j++)
            if (in->use[j * in->dims + l] > most) most = in->use[j * in->dims + l];
        s->scale[l] = 1.0 / most;
    }
    s->pins = in->pin_first[in->rows] > 0;
    for (int j = 0; j < in->rows; j++) s->on[j] = true;
    lp_fill(&s->root, in, s->on, s->scale, true);
    lp_start(&s->root);
    return true;
}

static void dispose(struct solver *s) {
    void *all[] = {s->scale, s->best,      s->choice,  s->fixed,        s->on,          s->load,     s->room, s->core_room,
                   s->left,  s->core_left, s->in_rack, s->core_in_rack, s->on_machines, s->in_racks, s->trail, s->core_on,
                   s->main_v, s->main_best};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
    lp_free(&s->root);
    lp_free(&s->core);
}

/* Solves the auction, and, with `payments`, once more without each winner.
 *
 * choice[apps]: the row of each bidder. value, bound[apps + 1]: the optimum without bidder i (of winners only;
 * the others' are the full one's) and, last, the full one; proved where equal. at_host[sizes * hosts],
 * at_rack[sizes * racks]: where gangs of each size may go. Half of budget_s is for the first solve.
 * Returns 0, or -1 without memory, -2 for malformed input. */
int isonomy_auction(const struct auction *in, double budget_s, int64_t nodes, int32_t payments, int32_t *choice,
                    double *value, double *bound, int32_t *at_host, int32_t *at_rack) {
    if (!well_formed(in)) return -2;
    struct solver s = {.in = in, .at_host = at_host, .at_rack = at_rack};
    double start_s = now_s();
    int result = -1;
    if (!prepare(&s)) goto end;
    for (int i = 0; i < in->apps; i++) s.best[i] = in->first[i + 1] - 1;
    s.value = 0.0;
    bound[in->apps] = solve(&s, start_s + budget_s * (payments ? 0.5 : 1.0), nodes);
    value[in->apps] = s.value;
    memcpy(choice, s.best, sizeof(int32_t) * (size_t)in->apps);
    save(&s);
    int winners = 0;
    for (int i = 0; i < in->apps; i++) winners += choice[i] != in->first[i + 1] - 1;
    for (int i = 0; i < in->apps; i++) {
        value[i] = value[in->apps], bound[i] = bound[in->apps];
        if (!payments || choice[i] == in->first[i + 1] - 1) continue;
        double left_s = start_s + budget_s - now_s();
        bound[i] = solve_without(&s, i, choice, now_s() + fmax(0.0, left_s) / winners--, nodes);
        value[i] = s.value;
    }
    fits(&s, choice); /* leaves its packing in at_host and at_rack */
    result = 0;
end:
    dispose(&s);
    return result;
}
