/* The launches of a thread that go on without a look. flight.c says why a batch grows with the launches before it. */
#include "gate.h"

int batch_open_launches(const struct launches *own)
{
	return own->given > own->left + 1 ? own->given - own->left - 1 : 0;
}

int64_t batch_open_ns(const struct launches *own)
{
	return batch_open_launches(own) ? own->first_budget_ns - own->budget_ns : 0;
}

int batch_size(const struct launches *own, CUcontext context, CUstream stream)
{
	unsigned before = own->stream == stream && own->context == context ? own->in_stream : 0;
	return before < 1 ? 1 : before < COSTS_BATCH ? (int)before : COSTS_BATCH;
}

void batch_refill(struct launches *own, int gpu, int batch)
{
	int used = own->given - own->left;
	if (used > 0) {
		ADD(slots_own->gpus[gpu].launches, (uint64_t)used);
		ADD(usage->totals[gpu].launches, (uint64_t)used);
	}
	own->given = own->left = batch;
	own->budget_ns = COSTS_BUDGET_NS;
}

static struct batch_end end_of_batch(const struct launches *own, CUcontext context, CUstream stream)
{
	struct batch_end end = {0};
	if (own->stream != stream || own->context != context)
		return end;
	end.launches = batch_open_launches(own);
	end.ns = batch_open_ns(own);
	for (int i = 0; i < end.launches; i++)
		end.used[i] = own->used[(own->left + 1 + i) % COSTS_BATCH];
	return end;
}

bool batch_begin(struct gate *gate, struct launches *own, CUcontext context, CUstream stream, uint64_t key)
{
	uint32_t known = costs_known(key);
	bool measure = known >= COSTS_LONG_NS;
	int batch = measure ? 1 : batch_size(own, context, stream);
	struct batch_end before = end_of_batch(own, context, stream);
	bool stays = own->stream == stream && own->context == context;
	unsigned launched = (unsigned)(own->given - own->left);
	own->in_stream = stays ? own->in_stream + launched : 0;
	batch_refill(own, gate->turn.gpu, batch);
	own->stream = stream;
	own->context = context;
	own->streams_epoch = streams_place(stream)->epoch;
	if (own->turns != gate->turns) {
		own->turns = gate->turns;
		gate->threads++;
	}
	int threads = gate->threads > gate->before ? gate->threads : gate->before;
	own->budget_ns /= threads > 1 ? threads : 1;
	if (known > own->budget_ns) /* a batch of its own: one more is in flight */
		own->budget_ns = known;
	bool spent = !measure && costs_spend(own, key);
	if (!spent) {
		own->left = 0;
		own->given = 1;
	}
	own->first_budget_ns = own->budget_ns;
	flight_begin(gate, own, &before, known, spent);
	return spent;
}
