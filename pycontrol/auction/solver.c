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

#include "auction.h"
#include "packing.h"
#include "relaxation.h"

#define FEW_ROWS 150   /* so many are searched at once */
#define ROUND_NODES 16 /* between two tries to make a relaxation whole */
#define FEW_NODES 200  /* for a search that only looks for a good choice */

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
    struct packing pack;
    int32_t *room, *core_room;
    int32_t *core_left, *core_in_rack;
    int *trail;
    int trail_n;
    bool pins;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double worth(const struct solver *s, const int32_t *choice) {
    double value = 0.0;
    for (int i = 0; i < s->in->apps; i++) value += s->in->gain[choice[i]];
    return value;
}

/* Counts a choice if it is better than the best one and has room; true if it needs no more thought. */
static bool consider(struct solver *s, const int32_t *choice) {
    double value = worth(s, choice);
    if (value <= s->value) return true;
    enum fit found = fits(&s->pack, choice);
    if (found == FITS) {
        s->value = value;
        memcpy(s->best, choice, sizeof(int32_t) * (size_t)s->in->apps);
    }
    return found == FITS;
}

static void count_load(struct solver *s, const int32_t *choice) {
    const struct auction *in = s->in;
    memset(s->pack.load, 0, sizeof(int32_t) * (size_t)in->dims);
    for (int i = 0; i < in->apps; i++)
        for (int l = 0; l < in->dims; l++) s->pack.load[l] += in->use[choice[i] * in->dims + l];
}

/* Moves bidder i of a choice to row j if the rooms allow it. */
static bool move(struct solver *s, int32_t *choice, int i, int j) {
    const struct auction *in = s->in;
    const int32_t *use = in->use + (size_t)j * (size_t)in->dims;
    const int32_t *old = in->use + (size_t)choice[i] * (size_t)in->dims;
    for (int l = 0; l < in->dims; l++)
        if (s->pack.load[l] + use[l] - old[l] > in->room[l]) return false;
    for (int l = 0; l < in->dims; l++) s->pack.load[l] += use[l] - old[l];
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

/* A relaxation made whole: its whole rows; for the bidders that it mixes, the row that its prices like best among
 * those with room; then what one bidder alone can gain. Bidders outside the relaxation take their settled row. */
static void make_whole(struct solver *s, const struct lp *lp) {
    const struct auction *in = s->in;
    for (int i = 0; lp->n < in->apps && i < in->apps; i++) s->choice[i] = s->fixed[i];
    for (int i = 0; i < lp->n; i++) {
        s->choice[lp->origin[i]] = in->first[lp->origin[i] + 1] - 1;
        for (int j = lp->first[i]; j < lp->first[i + 1]; j++)
            if (lp->on[j] && lp->x[j] > 1.0 - 1e-3) s->choice[lp->origin[i]] = lp->row[j];
    }
    count_load(s, s->choice);
    for (int i = 0; i < lp->n; i++) {
        int app = lp->origin[i], nothing = in->first[app + 1] - 1, last = lp->first[i + 1] - 1;
        if (s->choice[app] != nothing || (lp->row[last] == nothing && lp->x[last] > 1.0 - 1e-3)) continue;
        for (int j = lp->first[i], best = -1; j <= last; j++) {
            if (lp->row[j] == nothing || !lp->on[j] || (best >= 0 && lp->v[j] <= lp->v[best])) continue;
            if (move(s, s->choice, app, lp->row[j])) best = j;
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
        memcpy(s->pack.left, s->core_left, sizeof(int32_t) * (size_t)in->hosts);
        memcpy(s->pack.in_rack, s->core_in_rack, sizeof(int32_t) * (size_t)in->racks);
        for (int i = 0; i < lp->n; i++) {
            int count = 0, last = -1;
            for (int j = lp->first[i]; j < lp->first[i + 1]; j++)
                if (lp->on[j]) count++, last = lp->row[j];
            if (count == 1 && !keep(in, last, s->pack.left, s->pack.in_rack, s->room)) return false;
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
    if (s->nodes % ROUND_NODES == 0) make_whole(s, lp);
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
        if (value > s->value + EPS && !consider(s, s->choice) && fits(&s->pack, s->choice) == UNKNOWN)
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
    for (int i = 0; i < s->in->apps; i++) {
        double floor = root->best[i] - (bound - least);
        for (int j = s->in->first[i]; j < s->in->first[i + 1]; j++) s->on[j] &= root->v[j] > floor;
    }
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

/* A short search among the rows that lose no more than a part of the gap: a good choice is found soon there, and
 * fewer rows are left for the proof. True if the whole gap was searched. */
static bool glance(struct solver *s, double bound, double part) {
    int64_t most = s->nodes_max;
    size_t size = sizeof(bool) * (size_t)s->in->rows;
    memcpy(s->core_on, s->on, size);
    drop(s, bound, s->value + (1.0 - part) * (bound - s->value) + EPS);
    s->nodes = 0, s->nodes_max = FEW_NODES;
    search_core(s, bound);
    bool done = !s->stopped && part >= 1.0 && s->open == -INFINITY;
    s->stopped = false, s->open = -INFINITY, s->nodes_max = most;
    memcpy(s->on, s->core_on, size);
    drop(s, bound, s->value + EPS);
    return done;
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
    if (bound > s->value + EPS) make_whole(s, root);
    if (bound <= s->value + EPS) return s->value;
    drop(s, bound, s->value + EPS);
    if (rows_on(s) <= FEW_ROWS && glance(s, bound, 1.0)) return s->value;
    for (double part = 1.0 / 16.0; part < 1.0 && bound > s->value + EPS; part *= 4.0) glance(s, bound, part);
    s->nodes = 0;
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
    memset(s->on, true, sizeof(bool) * (size_t)in->rows);
    memset(s->on + in->first[i], false, sizeof(bool) * (size_t)(nothing - in->first[i]));
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

static bool prepare(struct solver *s) {
    const struct auction *in = s->in;
    size_t A = (size_t)in->apps, R = (size_t)in->rows, D = (size_t)in->dims, H = (size_t)in->hosts;
    size_t K = (size_t)in->racks;
    bool ok = lp_alloc(&s->root, in->apps, in->rows, in->dims) && lp_alloc(&s->core, in->apps, in->rows, in->dims) &&
              packing_alloc(&s->pack, in);
    s->scale = room_for(D, sizeof(double));
    s->best = room_for(A, sizeof(int32_t));
    s->choice = room_for(A, sizeof(int32_t));
    s->fixed = room_for(A, sizeof(int32_t));
    s->on = room_for(R, sizeof(bool));
    s->core_on = room_for(R, sizeof(bool));
    s->room = room_for(D, sizeof(int32_t));
    s->core_room = room_for(D, sizeof(int32_t));
    s->core_left = room_for(H, sizeof(int32_t));
    s->core_in_rack = room_for(K, sizeof(int32_t));
    s->trail = room_for(R, sizeof(int));
    s->main_v = room_for(R, sizeof(double));
    s->main_best = room_for(A, sizeof(double));
    if (!ok || !s->scale || !s->best || !s->choice || !s->fixed || !s->on || !s->core_on || !s->room || !s->core_room ||
        !s->core_left || !s->core_in_rack || !s->trail || !s->main_v || !s->main_best)
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
    void *all[] = {s->scale, s->best,      s->choice,       s->fixed, s->on,     s->core_on,  s->room,
                   s->core_room, s->core_left, s->core_in_rack, s->trail, s->main_v, s->main_best};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
    lp_free(&s->root);
    lp_free(&s->core);
    packing_free(&s->pack);
}

/* Who wins something takes it from the others. */
static bool pays(const struct auction *in, const int32_t *choice, int i) {
    return choice[i] != in->first[i + 1] - 1;
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
    struct solver s = {.in = in, .pack = {.at_host = at_host, .at_rack = at_rack}};
    double start_s = now_s();
    int result = -1;
    if (!prepare(&s)) goto end;
    for (int i = 0; i < in->apps; i++) s.best[i] = in->first[i + 1] - 1;
    s.value = 0.0;
    bound[in->apps] = solve(&s, start_s + budget_s * (payments ? 0.5 : 1.0), nodes);
    value[in->apps] = s.value;
    memcpy(choice, s.best, sizeof(int32_t) * (size_t)in->apps);
    save(&s);
    for (int i = 0; i < in->apps; i++) value[i] = value[in->apps], bound[i] = bound[in->apps];
    for (int pass = 0; payments && pass < 2; pass++) { /* what is hard gets the time that the others leave */
        int todo = 0;
        for (int i = 0; i < in->apps; i++) todo += pays(in, choice, i) && (pass == 0 || bound[i] > value[i]);
        for (int i = 0; i < in->apps; i++) {
            double time_s = now_s(), left_s = fmax(0.0, start_s + budget_s - time_s);
            if (!pays(in, choice, i) || (pass && bound[i] == value[i]) || (pass && left_s == 0.0)) continue;
            double most = solve_without(&s, i, choice, time_s + left_s / todo--, nodes);
            value[i] = pass ? fmax(value[i], s.value) : s.value;
            bound[i] = fmax(value[i], pass ? fmin(bound[i], most) : most);
        }
    }
    fits(&s.pack, choice); /* leaves its packing in at_host and at_rack */
    result = 0;
end:
    dispose(&s);
    return result;
}
