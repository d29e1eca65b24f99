/*
 * The work in flight: bounded, so that a turn does not end with seconds of work queued. gate.h explains the whole. Invariants:
 *
 * - A *flight* is what a thread launched in a stream between two events: the rest of a batch, and the first launch of the next. The
 *   second event is put right behind that launch. Launches behind the last event are *open*: nothing says when they end.
 * - A batch has as many launches as its thread made in the stream before it, COSTS_BATCH at most. So a thread that changes streams,
 *   or that ends, leaves no more open than it has put before events.
 * - A launch waits until there is room: FLIGHT_MOST launches and FLIGHT_AHEAD_NS of work of all threads may be in flight, and
 *   FLIGHT_STREAM_NS in one stream. Work of several streams counts as if one stream ran after the other.
 * - So of launches above LONG_NS one is in flight, and of those above COSTS_LONG_NS two: the goal for a neighbour is 40 ms and a kernel.
 * - A flight behind something that its stream waits for (waits.c) takes no room, until there are too many of them.
 * - Events are queried and destroyed with the lock held.
 */
#include "gate.h"

#include <string.h>
#include <sys/prctl.h>

#define STEP_LEAST_NS 10000ull
#define STEP_MOST_NS 1000000ull
#define EVENT_FLAGS 3u               /* sleep while waiting, no timing */
#define FLIGHT_MOST (2 * COSTS_BATCH)
#define FLIGHT_AHEAD_NS (4 * COSTS_BUDGET_NS)
#define FLIGHT_STREAM_NS (2 * COSTS_BUDGET_NS)
#define LONG_NS 20000000u
#define HELD_MOST (16 * COSTS_BATCH) /* launches that may be behind what streams wait for, */
#define HELD_FLIGHTS (FLIGHTS - FLIGHT_MOST - 1) /* and flights: the others never run out */
#define LOOK_AT_MOST 8

void flight_pause(uint64_t started, uint64_t now, uint64_t expected)
{
	uint64_t step = (now - started) / 32;
	if (expected > now + STEP_LEAST_NS)
		step = expected - now - STEP_LEAST_NS / 2;
	else if (expected)
		step = now > expected ? (now - expected) / 8 : 0;
	if (step > STEP_MOST_NS && expected <= now)
		step = STEP_MOST_NS;
	int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	clock_pause(step > STEP_LEAST_NS ? step : STEP_LEAST_NS);
	prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}

static bool in_stream(const struct flight *flight, CUcontext context, CUstream stream)
{
	return flight->stream == stream && flight->context == context && flight->owner == streams_owner(stream);
}

static CUevent *event_of(struct gate *gate, const struct flight *flight)
{
	struct gate_context *known = launched_know(gate, flight->context);
	return known ? &known->events[flight - gate->flights] : NULL;
}

/* Takes it out of the list that it is in, which begins at *at. */
static void take_out(struct flight **at, struct flight *flight)
{
	while (*at != flight)
		at = &(*at)->next;
	*at = flight->next;
}

static void put(struct flight **at, struct flight *flight)
{
	while (*at)
		at = &(*at)->next;
	*at = flight;
	flight->next = NULL;
}

static void end(struct gate *gate, struct flight *flight)
{
	take_out(flight->held ? &gate->held : &gate->flying, flight);
	if (flight->held) {
		gate->held_launches -= flight->launches;
	} else {
		gate->flying_launches -= flight->launches;
		gate->flying_ns -= flight->ns;
	}
	flight->number = 0;
	flight->next = gate->landed;
	gate->landed = flight;
}

/* Ends those whose event is reached; looks at no more than so many that go on. `waited`: it was waited for them. */
static void look(struct gate *gate, struct flight *first, int most, bool waited)
{
	int behind = 0;
	for (struct flight *flight = first, *next; flight && behind < most; flight = next) {
		next = flight->next;
		const CUevent *event = flight->recorded ? event_of(gate, flight) : NULL;
		if (!event || REAL(cuEventQuery)(*event) == CUDA_NOT_READY) {
			behind++;
			continue;
		}
		if (waited && clock_now() - flight->recorded_at > 4 * (uint64_t)flight->ahead_ns + COSTS_LONG_NS)
			costs_distrust(flight->used, flight->spent);
		end(gate, flight);
	}
}

/* The flight that has to end before there is room for the next batch of this thread; NULL: there is room. */
static struct flight *obstacle(const struct gate *gate, const struct launches *own, CUcontext context, CUstream stream)
{
	struct flight *oldest = NULL;
	bool stays = own->stream == stream && own->context == context;
	int64_t ns = stays ? batch_open_ns(own) : 0;
	int units = ns > 0;
	if (gate->flying_launches + batch_open_launches(own) + batch_size(own, context, stream) > FLIGHT_MOST ||
	    gate->flying_ns + batch_open_ns(own) > FLIGHT_AHEAD_NS)
		return gate->flying;
	for (struct flight *flight = gate->flying; flight; flight = flight->next)
		if (in_stream(flight, context, stream)) {
			oldest = oldest ? oldest : flight;
			ns += flight->ns;
			units++;
		}
	return ns > FLIGHT_STREAM_NS && units > 1 ? oldest : NULL;
}

bool flight_fits(struct gate *gate, const struct launches *own, CUcontext context, CUstream stream)
{
	if (!obstacle(gate, own, context, stream))
		return true;
	look(gate, gate->flying, LOOK_AT_MOST, false);
	return !obstacle(gate, own, context, stream);
}

static bool may_put_aside(const struct gate *gate, const struct flight *flight)
{
	int count = 0;
	for (const struct flight *held = gate->held; held; held = held->next)
		count++;
	return count < HELD_FLIGHTS && gate->held_launches + flight->launches <= HELD_MOST;
}

/* Puts a flight aside that is behind what its stream waits for, unless there are too many of them. */
static bool put_aside(struct gate *gate, struct flight *flight)
{
	uint64_t number = flight->number;
	if (!waits_any())
		return false;
	if (!may_put_aside(gate, flight))
		look(gate, gate->held, FLIGHTS, false);
	if (!may_put_aside(gate, flight))
		return false;
	CUcontext context = flight->context;
	CUstream stream = flight->stream;
	uint64_t owner = flight->owner;
	pthread_mutex_unlock(&gate->lock);
	bool held = waits_held(context, stream, owner);
	pthread_mutex_lock(&gate->lock);
	if (!held || flight->number != number || flight->held)
		return held;
	take_out(&gate->flying, flight);
	gate->flying_launches -= flight->launches;
	gate->flying_ns -= flight->ns;
	gate->held_launches += flight->launches;
	flight->held = true;
	put(&gate->held, flight);
	return true;
}

void flight_wait(struct gate *gate, const struct launches *own, CUcontext context, CUstream stream, uint64_t started)
{
	struct flight *flight = obstacle(gate, own, context, stream);
	if (!flight || put_aside(gate, flight))
		return;
	uint64_t now = clock_now();
	pthread_mutex_unlock(&gate->lock);
	flight_pause(started, now, 0);
	pthread_mutex_lock(&gate->lock);
	look(gate, gate->flying, LOOK_AT_MOST, true);
	flight = obstacle(gate, own, context, stream);
	if (flight && now - started > FLIGHT_PATIENCE_NS) /* a kernel may wait for what the program does next */
		end(gate, flight);
}

/* Two launches of up to LONG_NS have room at one time; a longer one, or one of which nothing is known, is the last that goes. */
static int64_t room_of(uint32_t ns)
{
	return ns < COSTS_LONG_NS ? ns : ns <= LONG_NS ? COSTS_LONG_NS : FLIGHT_AHEAD_NS + 1;
}

void flight_begin(struct gate *gate, struct launches *own, const struct batch_end *before, uint32_t ns, bool spent)
{
	struct flight *flight = own->flight = gate->landed;
	gate->landed = flight->next;
	*flight = (struct flight){.number = ++gate->last_flight, .context = own->context, .stream = own->stream,
				  .owner = streams_owner(own->stream), .launches = before->launches + 1,
				  .spent = spent ? before->launches + 1 : 0, .ns = before->ns + room_of(ns)};
	memcpy(flight->used, before->used, sizeof before->used);
	if (spent)
		flight->used[before->launches] = own->used[own->given % COSTS_BATCH];
	put(&gate->flying, flight);
	gate->flying_launches += flight->launches;
	gate->flying_ns += flight->ns;
	flight->ahead_ns = gate->flying_ns;
	own->flight_number = flight->number;
	CUevent *event = event_of(gate, flight);
	if (event && !*event && REAL(cuEventCreate)(event, EVENT_FLAGS) != CUDA_SUCCESS)
		*event = NULL;
	gate_behind = own;
}

/* Another thread may have drawn the stream into a capture meanwhile, and the event with it, which is never asked about then. */
static bool record(CUevent *event, CUstream stream)
{
	if (!event || !*event || REAL(cuEventRecord)(*event, stream) != CUDA_SUCCESS)
		return false;
	if (!captures_any() || !captures_hold(stream))
		return true;
	*event = NULL;
	return false;
}

void flight_launched(CUstream stream)
{
	struct launches *own = gate_behind;
	gate_behind = NULL;
	if (own->measuring)
		measure_end(own, stream);
	struct gate *gate = own->gate;
	struct flight *flight = own->flight;
	pthread_mutex_lock(&gate->lock);
	if (flight->number == own->flight_number) {
		flight->recorded = record(event_of(gate, flight), stream);
		flight->recorded_at = clock_now();
		if (!flight->recorded)
			end(gate, flight);
	}
	pthread_mutex_unlock(&gate->lock);
}

void flight_setup(struct gate *gate)
{
	for (int i = FLIGHTS - 1; i >= 0; i--) {
		gate->flights[i].next = gate->landed;
		gate->landed = &gate->flights[i];
	}
}

static void drop(struct gate *gate, struct flight *first, CUcontext context)
{
	for (struct flight *flight = first, *next; flight; flight = next) {
		next = flight->next;
		if (flight->context == context)
			end(gate, flight);
	}
}

void flight_drop(struct gate *gate, CUcontext context)
{
	drop(gate, gate->flying, context);
	drop(gate, gate->held, context);
}
