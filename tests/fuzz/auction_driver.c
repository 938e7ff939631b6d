/* Random auctions for solver.c, to be built with -fsanitize=address,undefined: auction_driver FIRST LAST (seeds, LAST
 * excluded). Every array has exactly its length, so that a read beside it is found; what comes back is checked. */
#include "solver.c"

#include <stdio.h>

static uint64_t state;

static uint64_t draw(void) { /* splitmix64 */
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static int32_t upto(int32_t most) { return (int32_t)(draw() % ((uint64_t)most + 1)); }

static bool chance(int32_t percent) { return upto(99) < percent; }

static double gain_of(bool odd) {
    if (!odd) return (double)upto(4000) / 1000.0;
    const double odds[] = {0.0, 1e-12, 700.0, -1.0, 1e-300, 41.0};
    return odds[upto(5)];
}

static int32_t *ints(size_t n) { return room_for(n, sizeof(int32_t)); }

static void fail(int64_t seed, const char *what) {
    fprintf(stderr, "seed %lld: %s\n", (long long)seed, what);
    abort();
}

static void one(int64_t seed) {
    state = (uint64_t)seed;
    bool odd = chance(25), broken = chance(10);
    struct auction a = {0};
    a.apps = 1 + upto(chance(5) ? 25 : 6);
    a.dims = 1 + upto(5);
    a.hosts = 1 + upto(7);
    a.racks = 1 + upto(a.hosts - 1);
    a.sizes = 1 + upto(3);
    a.chain = chance(60);
    int32_t *first = ints((size_t)a.apps + 1);
    for (int i = 0; i < a.apps; i++) first[i + 1] = first[i] + 1 + upto(chance(5) ? 40 : 8);
    a.rows = first[a.apps];
    size_t rows = (size_t)a.rows, dims = (size_t)a.dims;
    double *gain = room_for(rows, sizeof(double));
    int32_t *use = ints(rows * dims), *room = ints(dims), *level = ints(dims), *gangs = ints(rows), *size = ints(rows);
    int32_t *scope = ints(rows), *size_gpus = ints((size_t)a.sizes), *pin_first = ints(rows + 1);
    int32_t *free_gpus = ints((size_t)a.hosts), *rack = ints((size_t)a.hosts);
    int32_t *dim_type = ints(dims), *size_type = ints((size_t)a.sizes);
    int32_t *host_type = ints((size_t)a.hosts), *rack_type = ints((size_t)a.racks), types = 1 + upto(2);
    for (int r = 0; r < a.racks; r++) rack_type[r] = upto(types - 1);
    for (size_t l = 0; l < dims; l++) dim_type[l] = upto(types - 1);
    for (int k = 0; k < a.sizes; k++) size_type[k] = chance(10) ? -1 : upto(types - 1);
    int32_t left = 1 << (a.sizes + 1);
    for (int k = 0; k < a.sizes; k++) {
        size_gpus[k] = a.chain ? left : left - upto(1);
        left = left > 2 ? left / 2 : left;
        if (size_gpus[k] < 1) size_gpus[k] = 1;
    }
    int32_t in_all = 0;
    for (int h = 0; h < a.hosts; h++) {
        free_gpus[h] = odd && chance(5) ? INT32_MAX / 64 : upto(9);
        rack[h] = (int32_t)((int64_t)h * a.racks / a.hosts);
        host_type[h] = rack_type[rack[h]];
        in_all += free_gpus[h];
    }
    for (int l = 0; l < a.dims; l++) {
        level[l] = l ? (chance(50) ? 1 : -1) * size_gpus[upto(a.sizes - 1)] : 0;
        room[l] = l ? upto(12) : in_all;
    }
    for (int j = 0; j < a.rows; j++) pin_first[j + 1] = pin_first[j] + (chance(30) ? upto(3) : 0);
    size_t pins = (size_t)pin_first[a.rows];
    int32_t *pin_host = ints(pins), *pin_gpus = ints(pins);
    for (size_t k = 0; k < pins; k++) pin_host[k] = upto(a.hosts - 1), pin_gpus[k] = 1 + upto(3);
    for (int i = 0; i < a.apps; i++) {
        double best = gain_of(odd) + 4.0;
        for (int j = first[i]; j < first[i + 1]; j++) {
            bool nothing = j == first[i + 1] - 1;
            best = fmax(0.0, best - gain_of(odd) / 4.0);
            gain[j] = nothing ? 0.0 : best;
            size[j] = upto(a.sizes - 1), scope[j] = MACHINE + upto(2), gangs[j] = nothing ? 0 : upto(4);
            for (size_t l = 0; l < dims && !nothing; l++) use[(size_t)j * dims + l] = upto(l ? 4 : 12);
        }
    }
    if (broken) { /* one index beside its array, or one order upset: must be refused, not read */
        switch (upto(5)) {
        case 0: size[upto(a.rows - 1)] = chance(50) ? -1 : a.sizes; break;
        case 1: rack[upto(a.hosts - 1)] = chance(50) ? -1 : a.racks; break;
        case 2: first[upto(a.apps)] += chance(50) ? 1 : -1; break;
        case 3: use[upto(a.rows * a.dims - 1)] = -1; break;
        case 4: size_gpus[upto(a.sizes - 1)] = -upto(3); break;
        default: free_gpus[upto(a.hosts - 1)] = -1;
        }
    }
    a.first = first, a.gain = gain, a.use = use, a.room = room, a.level = level, a.gangs = gangs, a.size = size;
    a.scope = scope, a.size_gpus = size_gpus, a.pin_first = pin_first, a.pin_host = pin_host, a.pin_gpus = pin_gpus;
    a.free_gpus = free_gpus, a.rack = rack;
    a.dim_type = dim_type, a.size_type = size_type, a.host_type = host_type, a.rack_type = rack_type;
    int32_t *choice = ints((size_t)a.apps);
    double *value = room_for((size_t)a.apps + 1, sizeof(double)), *bound = room_for((size_t)a.apps + 1, sizeof(double));
    int32_t *at_host = ints((size_t)a.sizes * (size_t)a.hosts), *at_rack = ints((size_t)a.sizes * (size_t)a.racks);
    int status = isonomy_auction(&a, 0.02, 20000, chance(50), choice, value, bound, at_host, at_rack);
    if (status != 0 && status != -2) fail(seed, "an unknown status");
    if (status == -2 && !broken) fail(seed, "a well-formed auction was refused");
    for (int i = 0; status == 0 && i < a.apps; i++) {
        if (choice[i] < first[i] || choice[i] >= first[i + 1]) fail(seed, "a row of another bidder was chosen");
        if (bound[i] < value[i] - EPS) fail(seed, "a bound below the value");
    }
    for (size_t l = 0; status == 0 && l < dims; l++) {
        int64_t used = 0;
        for (int i = 0; i < a.apps; i++) used += use[(size_t)choice[i] * dims + l];
        if (used > room[l]) fail(seed, "more is used than there is room");
    }
    void *all[] = {first, gain, use, room, level, gangs, size, scope, size_gpus, pin_first, pin_host, pin_gpus, free_gpus,
                   rack, dim_type, size_type, host_type, rack_type, choice, value, bound, at_host, at_rack};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    for (int64_t seed = atoll(argv[1]); seed < atoll(argv[2]); seed++) one(seed);
    return 0;
}
