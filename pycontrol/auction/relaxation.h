/* The relaxation of an auction: a linear program with one convexity row a bidder (generalised upper bounding). */
#ifndef ISONOMY_RELAXATION_H
#define ISONOMY_RELAXATION_H
#include <math.h>
#include <string.h>

#include "auction.h"

#define PIVOT 1e-10
#define NUDGE 1e-7     /* right-hand sides are nudged by this, so that the simplex does not cycle */
#define PROMISING 12   /* columns that are priced between two looks at all */

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
    double *inv, *mat, *xb, *rest, *lambda, *w, *best;
    int *saved_key, *saved_basic;
};

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
    lp->rest = room_for(M, sizeof(double));
    lp->best = room_for(N, sizeof(double));
    lp->saved_key = room_for(N, sizeof(int));
    lp->saved_basic = room_for(M, sizeof(int));
    return lp->first && lp->app && lp->row && lp->origin && lp->a && lp->gain && lp->x && lp->v && lp->on && lp->b &&
           lp->nudged && lp->u && lp->key && lp->basic && lp->inv && lp->mat && lp->xb && lp->lambda && lp->w &&
           lp->best && lp->live && lp->live_first && lp->dim && lp->price && lp->rest && lp->saved_key && lp->saved_basic;
}

static void lp_free(struct lp *lp) {
    void *all[] = {lp->first, lp->app, lp->row,    lp->origin, lp->a,   lp->gain,   lp->x, lp->v,    lp->on,        lp->b,          lp->nudged,
                   lp->u,     lp->key, lp->basic,  lp->inv,    lp->mat, lp->lambda, lp->w, lp->best, lp->saved_key, lp->saved_basic, lp->xb,
                   lp->live, lp->live_first, lp->dim, lp->price, lp->rest};
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
    int *at = lp->live; /* written again before it is read */
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

/* The room that the bidders' keys leave. */
static void lp_rest(struct lp *lp) {
    memcpy(lp->rest, lp->nudged, sizeof(double) * (size_t)lp->m);
    for (int i = 0; i < lp->n; i++) {
        const double *a = lp->a + (size_t)lp->key[i] * (size_t)lp->m;
        for (int l = 0; l < lp->m; l++) lp->rest[l] -= lp->u[i] * a[l];
    }
}

static void lp_change_key(struct lp *lp, int i, int j) {
    for (int l = 0; l < lp->m; l++) lp->rest[l] += lp->u[i] * (lp->a[lp->key[i] * lp->m + l] - lp->a[j * lp->m + l]);
    lp->key[i] = j;
}

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
    for (int p = 0; p < m; p++) {
        lp->xb[p] = 0.0;
        for (int l = 0; l < m; l++) lp->xb[p] += inv[p * m + l] * lp->rest[l];
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
            lp->live[n] = j, n += lp->on[j];
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

/* One exchange; false if the basis cannot continue. */
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
        lp_change_key(lp, own, enter);
    } else { /* another row of that bidder becomes its key */
        lp_change_key(lp, leave_key, lp->basic[leave]);
        lp->basic[leave] = enter;
    }
    return true;
}

static void lp_restart(struct lp *lp) {
    lp_start(lp);
    lp_rest(lp);
    lp_factor(lp);
}

/* Solves the relaxation from the basis at hand; returns a bound that holds however far it came. */
static double lp_bound(struct lp *lp) {
    int limit = 20 * (lp->m + lp->n) + 200;
    lp_live(lp);
    lp->promising = 0;
    lp_rest(lp);
    if (!lp_factor(lp) || !lp_feasible(lp)) lp_restart(lp);
    for (int k = 0;; k++) {
        int enter = lp_price(lp);
        if (enter == INT32_MAX || k == limit || !lp_exchange(lp, enter)) break;
        if (!lp_factor(lp)) lp_restart(lp);
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

#endif
