/* Costs of passes, as numbers that Python keeps (sim.costs.forms.slots) and is asked for where a slot lacks one.

Every operation on a double is the one of the Python code, in its order, so that results are equal to the last bit. Rows of
slots are [first key, second key, numbers]. `ask` writes a slot, `check` hears of passes beyond what was measured.

Not here: who submits a pass and when it runs (core.c, core_lanes.h). */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int64_t Count;

/* Kinds of slots (sim.costs.forms.slots), with their keys: [rows, row tokens], [rows], [rows, row tokens], [chunk's tokens],
   [all tokens, rows and row tokens where experts count them], [head rows]. */
enum Kind { ROWS, LATER, BESIDE, CHUNK, TOKENS, HEAD, NUM_KINDS };
/* Kinds of passes, which are slower in service than alone by a factor each. */
enum Service { PROMPTS, DECODES, VERIFIES, DRAFTS, DRAFT_PROMPTS, NUM_SERVICES };
enum { KEYS = 2, NUM_SIZES = 6, BLOCK_QUERIES = 128, ROW_BITS = 32 };

typedef struct {
    double is_table, by_rows;  /* by_rows: the body depends on rows as well as on tokens (experts) */
    double layers, extra_s, phase_s, max_row_tokens;
    double fixed_s;            /* prefill attention of both forms; up to context_s compact's */
    double sharpness, root, four_heads, prefill_rate, small_factor, kv_bytes, kv_rate, block_s, tile_share, half_extra;
    double context_s;
    double pair_s, kv_token_s; /* table: a history that was not measured */
    double told[NUM_SIZES];    /* largest sizes (check_range) measured, or told to `check` */
    double widths[NUM_KINDS];  /* of slots */
} Constants;

typedef struct { double *data; Py_ssize_t width, mask; } Slots;
typedef struct { Constants is; double told_context; Slots slots[NUM_KINDS]; } Model;

typedef struct {
    double frontend_s, frontend_token_s;
    double step_s, row_s, eager_s, result_s, prompt_result_s, lookup_row_s, drafts_apart;
    double served[NUM_SERVICES]; /* sim.costs.in_service */
} Host;

typedef struct {
    Host host;
    Model model[2];            /* target, draft */
    PyObject *ask, *check, *hear; /* of gaps */
    int has_failed;            /* an exception is set: nothing is asked any more, and loops end */
} Costs;

typedef struct { Count new_tokens, history, request; } Chunk;
typedef struct { Count count, tokens, history, longest, longest_history; Chunk *at; } Chunks;
/* Rows with `row_tokens` queries and `context` in KV, all together, and the prompts' chunks; then, for a draft, the same rows
   with a token each, `passes` in all. `goes_on`: passes of a draft that began in an earlier work. */
typedef struct { Count rows, row_tokens, context, head_rows, passes; const Chunks *chunks; int goes_on; } Pass;
static const Chunks NO_CHUNKS;
typedef struct { double device_s, launch_s, tail_s, turns; } Cost;  /* turns: of a pass with chunks, without its rows' drafts */

static const double ONES[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* The numbers of a slot, asked for where they are not there, or another key's are; where that failed, ones, which are a
   valid slot of every kind. There are 2^n slots of a kind, and any hash would do. */
static const double *slot(Costs *costs, Model *m, enum Kind kind, Count first, Count second) {
    Slots *slots = &m->slots[kind];
    Py_ssize_t place = (first + second * 30) & slots->mask;
    double *row = slots->data + place * slots->width;
    if (row[0] == (double)first && row[1] == (double)second) return row + KEYS;
    if (costs->has_failed) return ONES;
    PyObject *none = PyObject_CallFunction(costs->ask, "iinLL", (int)(m - costs->model), (int)kind, place,
                                           (long long)first, (long long)second);
    costs->has_failed = none == NULL;
    Py_XDECREF(none);
    return none == NULL ? ONES : row + KEYS;
}

static Count fewer(Count a, Count b) { return b < a ? b : a; }
static Count more(Count a, Count b) { return b > a ? b : a; }
static double smaller(double a, double b) { return b < a ? b : a; }
static double larger(double a, double b) { return b > a ? b : a; }

/* Index of the last of the rising points that is not above `at`; -1 where all are. */
static Py_ssize_t last_up_to(const double *points, Py_ssize_t count, double at) {
    Py_ssize_t low = 0, high = count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (at < points[middle]) high = middle; else low = middle + 1;
    }
    return low - 1;
}

/* `line` at `at`: its number of points, these, and their values (sim.costs.forms.interpolation.value_at). */
static double value_at(const double *line, double at) {
    Py_ssize_t count = (Py_ssize_t)line[0], upper, lower;
    const double *axis = line + 1, *values = axis + count;
    if (count == 1 || at <= axis[0]) return values[0];
    upper = last_up_to(axis, count, at) + 1;
    if (upper > count - 1) upper = count - 1;
    if (at <= axis[count - 1]) lower = upper - 1;
    else if ((lower = last_up_to(axis, count, axis[count - 1] / 2)) < 0) lower = 0;
    double weight = (at - axis[lower]) / (axis[upper] - axis[lower]);
    return values[lower] + weight * (values[upper] - values[lower]);
}

/* A layer's attention of rows over `kv` tokens, compact: blocks_power, kv_token_s. */
static double together_s(const Model *m, const double *numbers, double kv) {
    return pow(numbers[0] + pow(kv * numbers[1], m->is.sharpness), m->is.root);
}

/* KV that the rows of a pass read. */
static Count kv_tokens(const Model *m, const Pass *p) {
    double most = p->rows * m->is.max_row_tokens;
    return (m->is.max_row_tokens > 0.0 && p->context > most ? (Count)most : p->context) + p->row_tokens;
}

/* ROWS and LATER: [launch_s, most context, fusion_s, fixed_s, query_s, then of the form]. */
enum { LAUNCH_S, MOST_CONTEXT, FUSION_S, FIXED_S, QUERY_S, OF_ROWS };

static double rows_attention_s(const Model *m, const double *numbers, double kv) {
    if (!m->is.is_table) return m->is.layers * together_s(m, numbers + OF_ROWS, kv);
    Py_ssize_t count = (Py_ssize_t)numbers[OF_ROWS]; /* points, KV tokens, seconds, slopes */
    const double *points = numbers + OF_ROWS + 1;
    Py_ssize_t i = last_up_to(points, count, kv);
    return points[count + i] + points[2 * count + i] * (kv - points[i]);
}

/* Tell `check` of a pass with a size beyond what was measured and told. */
static void check_range(Costs *costs, Model *m, const Pass *p, double most_context) {
    const Chunks *chunks = p->chunks;
    Count context = p->rows ? p->context / p->rows : 0, queries = p->rows ? (p->row_tokens + p->rows - 1) / p->rows : 0;
    Count sizes[NUM_SIZES] = {p->row_tokens + chunks->tokens, p->head_rows, p->rows, chunks->longest,
                              chunks->longest_history, queries};
    int is_new = context > most_context && context >= m->told_context;
    if (is_new) m->told_context = (double)context;
    for (int i = 0; i < NUM_SIZES; i++)
        if ((double)sizes[i] > m->is.told[i]) m->is.told[i] = (double)sizes[i], is_new = 1;
    if (!is_new || costs->has_failed) return;
    PyObject *none = PyObject_CallFunction(costs->check, "iLLLLy#", (int)(m - costs->model), (long long)p->rows,
                                           (long long)p->row_tokens, (long long)p->context, (long long)p->head_rows,
                                           chunks->count ? (char *)chunks->at : "", (Py_ssize_t)(chunks->count * sizeof(Chunk)));
    costs->has_failed = none == NULL;
    Py_XDECREF(none);
}

/* A work of rows alone, with all its passes (WorkCosts.cost). */
static Cost rows_cost(Costs *costs, Model *m, enum Kind kind, const Pass *p) {
    Count row_tokens = p->head_rows ? p->row_tokens : -p->row_tokens; /* no LM head: a key of its own */
    const double *part = slot(costs, m, kind, p->rows, kind == ROWS ? row_tokens : 0);
    if (p->context > part[MOST_CONTEXT]) check_range(costs, m, p, part[MOST_CONTEXT] / p->rows);
    Count num_later = p->passes - 1;
    double kv = (double)kv_tokens(m, p);
    Cost cost = {part[FIXED_S] + rows_attention_s(m, part, kv) + kv * part[QUERY_S], part[LAUNCH_S]};
    if (!p->goes_on) cost.device_s += part[FUSION_S], cost.device_s += m->is.phase_s;
    if (num_later <= 0) return cost;
    part = slot(costs, m, LATER, p->rows, 0);
    cost.launch_s += num_later * part[LAUNCH_S];
    cost.device_s += num_later * part[FIXED_S];
    for (Count i = 0; i < num_later; i++) {
        kv += p->rows;
        cost.device_s += rows_attention_s(m, part, kv);
    }
    return cost;
}

/* One layer's attention over the chunks of a pass, from measured curves. */
static double curves_s(Costs *costs, Model *m, const Chunks *chunks) {
    double total = 0.0;
    for (const Chunk *chunk = chunks->at; chunk < chunks->at + chunks->count; chunk++) {
        const double *curve = slot(costs, m, CHUNK, chunk->new_tokens, 0);
        if (curve[0] > 1.0) total += value_at(curve, (double)chunk->history);
        else total += curve[2] + (m->is.pair_s * chunk->new_tokens + m->is.kv_token_s) * chunk->history;
    }
    return total - (chunks->count - 1) * m->is.fixed_s;
}

/* The same from compact constants. */
static double pairs_s(const Constants *is, const Chunks *chunks) {
    double pairs = 0.0;
    for (const Chunk *chunk = chunks->at; chunk < chunks->at + chunks->count; chunk++) {
        Count padded = (chunk->new_tokens + BLOCK_QUERIES - 1) / BLOCK_QUERIES * BLOCK_QUERIES;
        double queries = chunk->new_tokens + is->tile_share * (padded - chunk->new_tokens);
        pairs += queries * (chunk->history + 0.5 * queries + is->half_extra);
    }
    double compute = is->four_heads * pairs / is->prefill_rate * is->small_factor;
    double memory = chunks->tokens * is->kv_bytes / is->kv_rate, longest = is->block_s * chunks->longest / BLOCK_QUERIES;
    return is->fixed_s + compute + memory + longest + chunks->history * is->context_s;
}

/* BESIDE: [most context of a row, seconds per token of a row's KV, seconds taken off, then of the form]. */
static double beside_s(const Model *m, const Pass *p, const double *numbers) {
    double kv = (double)kv_tokens(m, p), seconds = m->is.is_table ? value_at(numbers + 3, kv) : together_s(m, numbers + 3, kv);
    return seconds + numbers[1] * (kv / p->rows) - numbers[2];
}

/* A work with chunks (WorkCosts._any_cost). */
static Cost chunks_cost(Costs *costs, Model *m, const Pass *p) {
    const double *beside = p->rows ? slot(costs, m, BESIDE, p->rows, p->row_tokens) : NULL;
    check_range(costs, m, p, beside ? beside[0] : INFINITY);
    double attention_s = m->is.is_table ? curves_s(costs, m, p->chunks) : pairs_s(&m->is, p->chunks);
    if (beside) attention_s += beside_s(m, p, beside);
    double head_s = p->head_rows ? slot(costs, m, HEAD, p->head_rows, 0)[0] : 0.0;
    Count of_experts = m->is.by_rows ? p->rows << ROW_BITS | p->row_tokens : 0;
    const double *rest = slot(costs, m, TOKENS, p->row_tokens + p->chunks->tokens, of_experts); /* body, launch, fusion, turns */
    Cost cost = {rest[0] + m->is.layers * attention_s + head_s, rest[1], .turns = rest[3]};
    cost.device_s += m->is.extra_s + rest[2];
    if (p->rows) cost.device_s += m->is.phase_s;
    if (p->passes <= 1 || !p->rows) return cost;
    Pass later = {.rows = p->rows, .row_tokens = p->rows, .context = p->context + p->row_tokens, .head_rows = p->rows,
                  .passes = p->passes - 1, .chunks = &NO_CHUNKS};
    Cost more = rows_cost(costs, m, LATER, &later);
    cost.launch_s += more.launch_s;
    cost.device_s += more.device_s - slot(costs, m, LATER, p->rows, 0)[FUSION_S] - m->is.phase_s;
    return cost;
}

/* Prompts in the draft model, launched kernel by kernel, and then a draft that is not (WorkCosts.drafts_apart). */
static Cost apart_cost(Costs *costs, Model *m, const Pass *p) {
    Pass prompts = {.chunks = p->chunks}, draft = *p;
    draft.chunks = &NO_CHUNKS;
    Cost cost = chunks_cost(costs, m, &prompts), then = rows_cost(costs, m, ROWS, &draft);
    return (Cost){cost.device_s + then.device_s, cost.launch_s + then.launch_s, larger(0.0, then.device_s - then.launch_s)};
}

/* A pass in service, prepared for `ahead_s` before it is submitted; `prepare_s` is the host's part of it. */
static Cost work_cost(Costs *costs, int model, const Pass *p, double ahead_s, double *prepare_s) {
    const Host *host = &costs->host;
    Model *m = &costs->model[model];
    int is_apart = host->drafts_apart != 0.0 && model && p->chunks->count && p->rows;
    Cost cost = is_apart ? apart_cost(costs, m, p)
        : p->chunks->count || !p->rows ? chunks_cost(costs, m, p) : rows_cost(costs, m, ROWS, p);
    enum Service of_target = !p->rows ? PROMPTS : p->row_tokens > p->rows ? VERIFIES : DECODES;
    double served = host->served[!model ? of_target : p->rows ? DRAFTS : DRAFT_PROMPTS];
    cost.device_s += cost.device_s * (served - 1.0);
    *prepare_s = host->step_s + host->row_s * (p->rows + p->chunks->count);
    if (p->chunks->count) *prepare_s += host->eager_s;
    if (ahead_s != 0.0) *prepare_s = larger(*prepare_s - ahead_s, 0.0);
    return cost;
}

/* Token positions that a pass computes, as `Usage` counts them. */
static Count tokens_of(const Pass *p) {
    return p->row_tokens + p->chunks->tokens + (p->passes ? p->rows * (p->passes - 1) : 0);
}
