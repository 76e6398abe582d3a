/* Streams that contend for one device: what sim.devices.shared does with plain streams, under SERIAL and LEFTOVER.

A stream issues its works one after the other; those that are issued at once slow each other down. A work starts when it
is prepared, the work before it on its stream is over, and so is the one that it comes `after`. Several works share the
time of the device. Here, too, every sum is the one of the Python code, in its order.

An op lives while it is in flight and as long as somebody holds it. Not here: costs (core_costs.h), who submits
(core_lanes.h). */

enum { MAX_STREAMS = 3, OPS_PER_BLOCK = 64 };
enum WorkKind { PREFILL, DRAFT, VERIFY, NUM_WORK_KINDS };
#define SLACK 1e-9
#define NEVER INFINITY

typedef struct { Count num_works, tokens; double device_s; } Usage;
/* What a run sums up: of continuous, target and draft are kinds of works of its one stream. */
typedef struct { double now_s, busy_s; Count num_polls; Usage usage[MAX_STREAMS][NUM_WORK_KINDS]; } Totals;

typedef struct Op {
    double prepare_s, launch_s, device_s, kernels_per_s;
    double host_done_s, host_since_s, slowdown, prepared_s, issued_s;
    double left_s, since_s, rate, finish_s, start_s, end_s, ready_s;
    struct Op *after, *next;   /* the next one of its stream; of those that are free */
    int stream, kind, has_chunks, is_prepared, is_issued, num_holders;
    Count tokens;
} Op;

typedef struct Block { struct Block *next; Op ops[OPS_PER_BLOCK]; } Block;
/* The first that is not issued, the first that has not started, and the newest, of those in flight. */
typedef struct { Op *to_issue, *to_run, *last, *running; double submitted_s; Usage usage[NUM_WORK_KINDS]; } Queue;

typedef struct {
    double now_s, timer_s, phi, result_s, prompt_result_s, inflation[MAX_STREAMS + 1];
    int num_streams, is_slowing, fewer_are_faster[MAX_STREAMS + 1];
    Queue queues[MAX_STREAMS];
    Op *running[MAX_STREAMS], *issuing[MAX_STREAMS];
    int num_running, num_issuing;
    double busy_s, busy_since_s;   /* seconds with a work, from idle to idle; -1: idle */
    Op *free;
    Block *blocks;
} Device;

/* -- ops */

static Op *new_op(Device *d) {
    if (d->free == NULL) {
        Block *block = PyMem_Malloc(sizeof(Block));
        if (block == NULL) return NULL;
        block->next = d->blocks, d->blocks = block;
        for (int i = 0; i < OPS_PER_BLOCK; i++) block->ops[i].next = d->free, d->free = &block->ops[i];
    }
    Op *op = d->free;
    d->free = op->next;
    return op;
}

static void let_go(Device *d, Op *op) {
    if (op != NULL && --op->num_holders == 0) op->next = d->free, d->free = op;
}

static void free_ops(Device *d) {
    while (d->blocks != NULL) {
        Block *next = d->blocks->next;
        PyMem_Free(d->blocks);
        d->blocks = next;
    }
}

static int is_over(const Op *op, double now_s) { return op == NULL || op->end_s <= now_s; }

static double left_at(const Op *op, double now_s) {
    double left_s = op->left_s - (now_s - op->since_s) * op->rate;
    return left_s > 0.0 ? left_s : 0.0;
}

/* The most an op can run at: while it is being launched, its device time spread over the launch. */
static double launch_cap(const Op *op, double now_s) {
    if (op->is_issued) return 1.0;
    double launch_s = op->issued_s - now_s, left_s = left_at(op, now_s);
    return left_s < launch_s ? left_s / launch_s : 1.0;
}

static void set_rate(Op *op, double rate, double cap, double now_s) {
    int ends_with_launch = !op->is_issued && cap < 1.0 && rate >= cap * (1.0 - SLACK);
    if (!ends_with_launch && rate == op->rate && op->finish_s != NEVER) return;
    op->left_s = left_at(op, now_s), op->since_s = now_s, op->rate = rate;
    if (ends_with_launch) op->finish_s = op->issued_s;
    else if (op->left_s <= SLACK * op->device_s) op->finish_s = now_s;
    else op->finish_s = rate > 0.0 ? now_s + op->left_s / rate : NEVER;
}

/* -- shares of the device's time (contention.share_time, add_leftover) */

static void share_time(int count, const double *caps, const double *weights, double *rates) {
    double left = 1.0;
    int open[MAX_STREAMS], num_open = count;
    for (int i = 0; i < count; i++) open[i] = i, rates[i] = 0.0;
    while (num_open) {
        double total = 0.0, taken = left;
        int rest[MAX_STREAMS], num_rest = 0;
        for (int j = 0; j < num_open; j++) total += weights[open[j]];
        for (int j = 0; j < num_open; j++) {
            int i = open[j];
            if (weights[i] * left >= caps[i] * total) rates[i] = caps[i], taken -= caps[i];
            else rest[num_rest++] = i;
        }
        if (num_rest == num_open) {
            for (int j = 0; j < num_open; j++) rates[open[j]] = left * weights[open[j]] / total;
            return;
        }
        left = larger(taken, 0.0), num_open = num_rest;
        memcpy(open, rest, sizeof rest);
    }
}

static void set_rates(Device *d) {
    double caps[MAX_STREAMS], turns_s[MAX_STREAMS], rates[MAX_STREAMS];
    if (!d->num_running) {
        if (d->busy_since_s >= 0.0) d->busy_s += d->now_s - d->busy_since_s;
        d->busy_since_s = -1.0;
        return;
    }
    if (d->busy_since_s < 0.0) d->busy_since_s = d->now_s;
    for (int i = 0; i < d->num_running; i++) {
        const Op *op = d->running[i];
        caps[i] = launch_cap(op, d->now_s);
        turns_s[i] = op->kernels_per_s != 0.0 ? 1.0 / op->kernels_per_s : 0.0;
    }
    if (d->num_running == 1) { set_rate(d->running[0], caps[0], caps[0], d->now_s); return; }
    share_time(d->num_running, caps, turns_s, rates);
    for (int i = 0; i < d->num_running; i++) {
        double rate = d->phi != 0.0 ? smaller(caps[i], rates[i] + d->phi * (1.0 - rates[i])) : rates[i];
        set_rate(d->running[i], rate, caps[i], d->now_s);
    }
}

/* -- launching is a resource */

static void set_slowdown(Op *op, double slowdown, double now_s) {
    if (op->slowdown != 0.0) op->host_done_s += (now_s - op->host_since_s) / op->slowdown;
    op->slowdown = slowdown, op->host_since_s = now_s;
    if (op->prepared_s > now_s) {
        op->prepared_s = now_s + larger(0.0, op->prepare_s - op->host_done_s) * slowdown;
        op->issued_s = op->prepared_s + op->launch_s * slowdown;
    } else {
        op->issued_s = now_s + larger(0.0, op->prepare_s + op->launch_s - op->host_done_s) * slowdown;
    }
}

static void set_slowdowns(Device *d) {
    double slowdown = d->inflation[d->num_issuing];
    int is_bound = 0;
    d->is_slowing = d->fewer_are_faster[d->num_issuing];
    for (int i = 0; i < d->num_issuing; i++) {
        Op *op = d->issuing[i];
        if (op->slowdown == slowdown) continue;
        int is_running = d->queues[op->stream].running == op;
        is_bound |= is_running && launch_cap(op, d->now_s) < 1.0;
        set_slowdown(op, slowdown, d->now_s);
        is_bound |= is_running && launch_cap(op, d->now_s) < 1.0;
    }
    if (is_bound) set_rates(d);
}

static void take_out(Op **list, int *count, const Op *op) {
    int i = 0;
    while (list[i] != op) i++;
    for ((*count)--; i < *count; i++) list[i] = list[i + 1];
}

static void begin_issue(Device *d, Op *op) {
    d->issuing[d->num_issuing++] = op;
    set_slowdowns(d);
}

/* Note what is prepared by now, and end the first launch that is over; its op, or NULL. */
static Op *end_launch(Device *d) {
    for (int i = 0; i < d->num_issuing; i++) {
        Op *op = d->issuing[i];
        if (op->prepared_s <= d->now_s) op->is_prepared = 1;
        if (op->issued_s > d->now_s) continue;
        Queue *queue = &d->queues[op->stream];
        take_out(d->issuing, &d->num_issuing, op);
        queue->to_issue = op->next, op->is_issued = 1;
        if (queue->to_issue != NULL) begin_issue(d, queue->to_issue); else set_slowdowns(d);
        return op;
    }
    return NULL;
}

static int is_held_back(const Device *d, const Op *op) { return d->queues[op->stream].running == op && op->rate < 1.0; }

/* -- the loop of events */

/* The next instant at which something else depends on what happens then (shared._arm_timer). */
static void arm_timer(Device *d) {
    double next_s = NEVER;
    int is_capped = 0;
    if (d->num_running > 1 || d->num_issuing > 1)
        for (int i = 0; i < d->num_running; i++) is_capped |= launch_cap(d->running[i], d->now_s) < 1.0;
    for (int i = 0; i < d->num_issuing; i++) {
        const Op *op = d->issuing[i];
        const Queue *queue = &d->queues[op->stream];
        int may_start = !op->is_prepared && queue->running == NULL && is_over(op->after, d->now_s);
        int matters = op->next != NULL || d->is_slowing || (queue->running == op && is_capped) || op->finish_s <= op->issued_s;
        if (may_start) next_s = smaller(next_s, op->prepared_s);
        if (matters) next_s = smaller(next_s, op->issued_s);
    }
    for (int i = 0; i < d->num_running; i++) next_s = smaller(next_s, d->running[i]->finish_s);
    d->timer_s = next_s;
}

static void end_op(Device *d, Op *op) {
    Queue *queue = &d->queues[op->stream];
    Usage *usage = &queue->usage[op->kind];
    op->end_s = d->now_s, op->ready_s = d->now_s + (op->has_chunks ? d->prompt_result_s : d->result_s);
    usage->num_works++, usage->tokens += op->tokens, usage->device_s += op->end_s - op->start_s;
    if (queue->last == op) queue->last = NULL;
    let_go(d, op->after), op->after = NULL;
    let_go(d, op);
}

static void start_op(Device *d, Queue *queue) {
    Op *op = queue->to_run;
    queue->running = op, queue->to_run = op->next;
    op->start_s = op->since_s = d->now_s;
    d->running[d->num_running++] = op;
    if (op->left_s == 0.0) op->finish_s = d->now_s;
}

/* Do all that is due, then set the rates if works or launches changed, then the timer. */
static void update(Device *d, int has_changed) {
    for (int is_due = 1; is_due;) {
        const Op *launched = d->num_issuing ? end_launch(d) : NULL;
        is_due = launched != NULL;
        if (is_due) has_changed |= is_held_back(d, launched);
        for (int i = 0; i < d->num_running; i++) {
            Op *op = d->running[i];
            if (!(op->finish_s <= d->now_s && op->is_issued)) continue;
            d->queues[op->stream].running = NULL;
            take_out(d->running, &d->num_running, op);
            end_op(d, op);
            is_due = has_changed = 1;
            break;
        }
        for (Queue *queue = d->queues; queue < d->queues + d->num_streams; queue++) {
            const Op *op = queue->to_run;
            if (op == NULL || queue->running != NULL || !op->is_prepared || !is_over(op->after, d->now_s)) continue;
            start_op(d, queue);
            has_changed = 1, is_due |= op->left_s == 0.0;
        }
    }
    if (has_changed) set_rates(d);
    arm_timer(d);
}

/* Submit an op as given, `after` another one or none, which it holds until then. The caller holds the op, too. NULL: memory is
   out. */
static Op *put_on(Device *d, int stream, const Op *given, Op *after) {
    Op *op = new_op(d);
    const Op *launched;
    Queue *queue = &d->queues[stream];
    int has_changed = 0;
    if (op == NULL) return NULL;
    *op = *given, op->stream = stream, op->num_holders = 2;
    if (after != NULL && after->end_s > d->now_s) op->after = after, after->num_holders++;
    op->prepared_s = op->issued_s = op->finish_s = op->end_s = op->ready_s = NEVER;
    op->left_s = op->device_s, op->kernels_per_s = op->device_s != 0.0 ? op->kernels_per_s / op->device_s : 0.0;
    while (d->num_issuing && (launched = end_launch(d)) != NULL) has_changed |= is_held_back(d, launched);
    if (queue->last != NULL) queue->last->next = op;
    queue->last = op;
    if (queue->to_run == NULL) queue->to_run = op;
    if (queue->to_issue == NULL) {
        queue->to_issue = op;
        begin_issue(d, op);
    }
    if (op->prepared_s <= d->now_s) update(d, has_changed);
    else {
        if (has_changed) set_rates(d);
        arm_timer(d);
    }
    return op;
}
