/* The arithmetic of PTX: what an instruction makes of its operands. */
#include "ptx.h"

#include <math.h>
#include <string.h>

uint32_t ptx_width(enum ptx_type type)
{
	static const uint8_t widths[] = {1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 2, 2, 4, 4, 1, 8};
	return widths[type];
}

bool ptx_is_float(enum ptx_type type)
{
	return type >= PTX_F32 && type <= PTX_BF16X2;
}

bool ptx_is_signed(enum ptx_type type)
{
	return type >= PTX_S8 && type <= PTX_S64;
}

uint64_t ptx_mask(enum ptx_type type, uint64_t value)
{
	uint32_t width = ptx_width(type);
	return width == 8 ? value : value & ((1ull << 8 * width) - 1);
}

int64_t ptx_signed(enum ptx_type type, uint64_t value)
{
	switch (ptx_width(type)) {
	case 1: return (int8_t)value;
	case 2: return (int16_t)value;
	case 4: return (int32_t)value;
	}
	return (int64_t)value;
}

static float as_f32(uint64_t bits)
{
	uint32_t narrow = (uint32_t)bits;
	float value;
	memcpy(&value, &narrow, sizeof value);
	return value;
}

static double as_f64(uint64_t bits)
{
	double value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static uint64_t from_f32(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static uint64_t from_f64(double value)
{
	uint64_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

/* A float of any width but a pair. */
static double as_real(enum ptx_type type, uint64_t bits)
{
	return type == PTX_F32 ? (double)as_f32(bits) : type == PTX_F64 ? as_f64(bits) : ptx_from_half(type, bits);
}

static uint64_t from_real(enum ptx_type type, double value)
{
	return type == PTX_F32 ? from_f32((float)value) : type == PTX_F64 ? from_f64(value) : ptx_to_half(type, value);
}

static bool compare(enum ptx_mode mode, bool less, bool equal, bool unordered)
{
	switch (mode) {
	case M_EQ: return equal && !unordered;
	case M_NE: return !equal && !unordered;
	case M_LT: case M_LO: return less && !unordered;
	case M_LE: case M_LS: return (less || equal) && !unordered;
	case M_GT: case M_HI: return !less && !equal && !unordered;
	case M_GE: case M_HS: return !less && !unordered;
	case M_EQU: return equal || unordered;
	case M_NEU: return !equal || unordered;
	case M_LTU: return less || unordered;
	case M_LEU: return less || equal || unordered;
	case M_GTU: return (!less && !equal) || unordered;
	case M_GEU: return !less || unordered;
	case M_NUM: return !unordered;
	case M_NAN: return unordered;
	default: return false;
	}
}

static bool compared(const struct ptx_instruction *i, enum ptx_type type, uint64_t a, uint64_t b)
{
	enum ptx_mode mode = (enum ptx_mode)i->mode;
	if (ptx_is_float(type)) {
		double x = as_real(type, a), y = as_real(type, b);
		return compare(mode, x < y, x == y, isnan(x) || isnan(y));
	}
	a = ptx_mask(type, a);
	b = ptx_mask(type, b);
	bool less = ptx_is_signed(type) ? ptx_signed(type, a) < ptx_signed(type, b) : a < b;
	return compare(mode, less, a == b, false);
}

static double real(const struct ptx_instruction *i, double a, double b, double c)
{
	switch (i->op) {
	case OP_ADD: return a + b;
	case OP_SUB: return a - b;
	case OP_MUL: return a * b;
	case OP_DIV: return a / b;
	case OP_MAD: case OP_FMA: return fma(a, b, c);
	case OP_ABS: return fabs(a);
	case OP_NEG: return -a;
	/* Of a number and a NaN the number; with .NaN the NaN. */
	case OP_MIN: return i->mode == M_NAN && (isnan(a) || isnan(b)) ? NAN : fmin(a, b);
	case OP_MAX: return i->mode == M_NAN && (isnan(a) || isnan(b)) ? NAN : fmax(a, b);
	case OP_SQRT: return sqrt(a);
	case OP_RCP: return 1 / a;
	case OP_RSQRT: return 1 / sqrt(a);
	case OP_SIN: return sin(a);
	case OP_COS: return cos(a);
	case OP_EX2: return exp2(a);
	case OP_LG2: return log2(a);
	case OP_TANH: return tanh(a);
	default: return copysign(b, a); /* PTX: the sign of the first, the value of the second */
	}
}

/* Doubles hold products and sums of floats closely enough that rounding twice is right for + - * / and sqrt
   (Figueroa, "When is double rounding innocuous?", 1995); fused multiply-add is not, and has its own function. */
static uint64_t compute_f32(const struct ptx_instruction *i, uint64_t a, uint64_t b, uint64_t c)
{
	float result = i->op == OP_FMA || i->op == OP_MAD ? fmaf(as_f32(a), as_f32(b), as_f32(c))
							  : (float)real(i, as_f32(a), as_f32(b), as_f32(c));
	if (i->saturate)
		result = isnan(result) ? 0 : fminf(fmaxf(result, 0), 1);
	return from_f32(result);
}

static uint64_t compute_half(const struct ptx_instruction *i, enum ptx_type type, uint64_t a, uint64_t b, uint64_t c)
{
	double result = real(i, ptx_from_half(type, a), ptx_from_half(type, b), ptx_from_half(type, c));
	if (i->saturate)
		result = isnan(result) ? 0 : fmin(fmax(result, 0), 1);
	return ptx_to_half(type, result);
}

/* The lower number and the upper one, each for itself. */
static uint64_t compute_pair(const struct ptx_instruction *i, enum ptx_type type, uint64_t a, uint64_t b, uint64_t c)
{
	return compute_half(i, type, a & 0xffff, b & 0xffff, c & 0xffff) |
	       compute_half(i, type, a >> 16 & 0xffff, b >> 16 & 0xffff, c >> 16 & 0xffff) << 16;
}

static uint64_t multiply_high(enum ptx_type type, uint64_t a, uint64_t b)
{
	uint32_t bits = 8 * ptx_width(type);
	if (ptx_is_signed(type))
		return (uint64_t)(((__int128)ptx_signed(type, a) * ptx_signed(type, b)) >> bits);
	return (uint64_t)(((unsigned __int128)a * b) >> bits);
}

static uint64_t multiply(const struct ptx_instruction *i, enum ptx_type type, uint64_t a, uint64_t b)
{
	if (i->mode == M_HI)
		return multiply_high(type, a, b);
	if (i->mode == M_WIDE && ptx_is_signed(type))
		return (uint64_t)(ptx_signed(type, a) * ptx_signed(type, b));
	return a * b;
}

static uint64_t shift_right(enum ptx_type type, uint64_t a, uint64_t amount)
{
	uint32_t bits = 8 * ptx_width(type);
	if (ptx_is_signed(type))
		return (uint64_t)(ptx_signed(type, a) >> (amount < bits ? amount : bits - 1));
	return amount < bits ? a >> amount : 0;
}

static uint64_t extract(enum ptx_type type, uint64_t a, uint64_t position, uint64_t length)
{
	uint32_t bits = 8 * ptx_width(type);
	uint64_t result = 0;
	position &= 0xff;
	length &= 0xff;
	/* Beyond the end the sign bit is repeated. */
	uint64_t last = position + length - 1 < bits ? position + length - 1 : bits - 1;
	uint64_t sign = ptx_is_signed(type) && length ? a >> last & 1 : 0;
	for (uint32_t bit = 0; bit < bits; bit++) {
		uint64_t value = bit < length && position + bit < bits ? a >> (position + bit) & 1 : sign;
		result |= value << bit;
	}
	return result;
}

static uint64_t insert(enum ptx_type type, uint64_t from, uint64_t into, uint64_t position, uint64_t length)
{
	uint32_t bits = 8 * ptx_width(type);
	position &= 0xff;
	length &= 0xff;
	for (uint64_t bit = 0; bit < length && position + bit < bits; bit++) {
		uint64_t mask = 1ull << (position + bit);
		into = from >> bit & 1 ? into | mask : into & ~mask;
	}
	return into;
}

/* The choices of the modes of prmt for each value of the two lowest bits; the highest byte first, as the manual has them. */
static uint64_t selection_of(enum ptx_mode mode, uint64_t c)
{
	static const uint16_t choices[][4] = {
		{0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123}, {0x0000, 0x1111, 0x2222, 0x3333},
		{0x3210, 0x3211, 0x3222, 0x3333}, {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232},
	};
	return mode == M_NONE ? c : choices[mode - M_F4E][c & 3];
}

static uint64_t permute(uint64_t a, uint64_t b, uint64_t selection)
{
	uint64_t bytes = (b << 32) | (a & 0xffffffff), result = 0;
	for (int i = 0; i < 4; i++) {
		uint32_t choice = selection >> 4 * i & 0xf;
		uint64_t byte = bytes >> 8 * (choice & 7) & 0xff;
		if (choice & 8)
			byte = byte & 0x80 ? 0xff : 0;
		result |= byte << 8 * i;
	}
	return result;
}

static uint64_t find_bit(const struct ptx_instruction *i, enum ptx_type type, uint64_t a)
{
	if (ptx_is_signed(type) && ptx_signed(type, a) < 0)
		a = ptx_mask(type, ~a);
	if (!a)
		return 0xffffffff;
	uint32_t bit = 63 - (uint32_t)__builtin_clzll(a);
	return i->mode == M_SHIFTAMT ? 8 * ptx_width(type) - 1 - bit : bit;
}

static uint64_t compute_integer(const struct ptx_instruction *i, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	enum ptx_type type = (enum ptx_type)i->type;
	uint32_t bits = 8 * ptx_width(type);
	bool is_signed = ptx_is_signed(type);
	int64_t sa = ptx_signed(type, a), sb = ptx_signed(type, b);
	switch (i->op) {
	case OP_ADD:
		if (i->saturate && type == PTX_S32) {
			int64_t sum = sa + sb;
			return (uint64_t)(sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum);
		}
		return a + b;
	case OP_SUB:
		if (i->saturate && type == PTX_S32) {
			int64_t difference = sa - sb;
			return (uint64_t)(difference > INT32_MAX ? INT32_MAX : difference < INT32_MIN ? INT32_MIN : difference);
		}
		return a - b;
	case OP_MUL: return multiply(i, type, a, b);
	case OP_MAD: return multiply(i, type, a, b) + c;
	/* Division by zero is not defined by PTX; GPUs give all ones. The least number by -1 overflows to itself. */
	case OP_DIV: return !b ? ~0ull : is_signed ? (uint64_t)(sb == -1 ? (int64_t)(0 - (uint64_t)sa) : sa / sb) : a / b;
	case OP_REM: return !b ? a : is_signed ? (uint64_t)(sb == -1 ? 0 : sa % sb) : a % b;
	case OP_ABS: return sa < 0 ? 0 - (uint64_t)sa : (uint64_t)sa;
	case OP_NEG: return 0 - a;
	case OP_MIN: return is_signed ? (uint64_t)(sa < sb ? sa : sb) : a < b ? a : b;
	case OP_MAX: return is_signed ? (uint64_t)(sa > sb ? sa : sb) : a > b ? a : b;
	case OP_SAD: return c + (is_signed ? (sa > sb ? a - b : b - a) : a > b ? a - b : b - a);
	case OP_AND: return a & b;
	case OP_OR: return a | b;
	case OP_XOR: return a ^ b;
	case OP_NOT: return type == PTX_PRED ? !a : ~a;
	case OP_CNOT: return a == 0;
	case OP_SHL: return (uint32_t)b < bits ? a << (uint32_t)b : 0;
	case OP_SHR: return shift_right(type, a, (uint32_t)b);
	case OP_POPC: return (uint64_t)__builtin_popcountll(a);
	case OP_CLZ: return a ? (uint64_t)__builtin_clzll(a) - (64 - bits) : bits;
	case OP_BREV: {
		uint64_t result = 0;
		for (uint32_t bit = 0; bit < bits; bit++)
			result |= (a >> bit & 1) << (bits - 1 - bit);
		return result;
	}
	case OP_BFIND: return find_bit(i, type, a);
	case OP_BFE: return extract(type, a, b, c);
	case OP_BFI: return insert(type, a, b, c, d);
	case OP_PRMT: return permute(a, b, selection_of((enum ptx_mode)i->mode, c));
	case OP_LOP3: {
		uint64_t result = 0;
		for (uint32_t bit = 0; bit < 32; bit++)
			result |= (d >> ((a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)) & 1) << bit;
		return result;
	}
	case OP_SHF: {
		uint64_t amount = i->second_mode == M_CLAMP ? (c > 32 ? 32 : c) : c & 31;
		uint64_t both = b << 32 | (a & 0xffffffff);
		return i->mode == M_L ? (amount == 32 ? a : both << amount >> 32) : both >> amount;
	}
	default: return 0;
	}
}

/* Converts a float to the integer `type`, with the limits of the type and NaN as 0. */
static uint64_t to_integer(enum ptx_type type, double value)
{
	uint32_t bits = 8 * ptx_width(type);
	if (isnan(value))
		return 0;
	if (ptx_is_signed(type)) {
		double limit = ldexp(1, (int)bits - 1);
		if (value >= limit)
			return ~(1ull << (bits - 1)) & (bits == 64 ? ~0ull : (1ull << bits) - 1);
		return value < -limit ? 1ull << (bits - 1) : (uint64_t)(int64_t)value;
	}
	if (value >= ldexp(1, (int)bits))
		return ~0ull;
	return value <= 0 ? 0 : (uint64_t)value;
}

static double rounded(enum ptx_mode mode, double value)
{
	switch (mode) {
	case M_RNI: return nearbyint(value);
	case M_RMI: return floor(value);
	case M_RPI: return ceil(value);
	case M_RZI: return trunc(value);
	default: return value;
	}
}

static uint64_t convert(const struct ptx_instruction *i, uint64_t a, uint64_t b)
{
	enum ptx_type to = (enum ptx_type)i->type, from = (enum ptx_type)i->other_type;
	if (ptx_is_pair(to)) /* the first becomes the upper one */
		return ptx_to_half(to, as_f32(a)) << 16 | ptx_to_half(to, as_f32(b));
	a = ptx_mask(from, a);
	if (ptx_is_float(from)) {
		double value = as_real(from, a);
		if (!ptx_is_float(to))
			return to_integer(to, rounded(i->mode == M_NONE ? M_RZI : (enum ptx_mode)i->mode, value));
		value = rounded((enum ptx_mode)i->mode, value);
		if (i->saturate)
			value = isnan(value) ? 0 : fmin(fmax(value, 0), 1);
		return from_real(to, value);
	}
	if (ptx_is_half(to))
		return ptx_to_half(to, ptx_is_signed(from) ? (double)ptx_signed(from, a) : (double)a);
	if (to == PTX_F32)
		return from_f32(ptx_is_signed(from) ? (float)ptx_signed(from, a) : (float)a);
	if (to == PTX_F64)
		return from_f64(ptx_is_signed(from) ? (double)ptx_signed(from, a) : (double)a);
	if (i->saturate) {
		__int128 value = ptx_is_signed(from) ? (__int128)ptx_signed(from, a) : (__int128)a;
		uint32_t bits = 8 * ptx_width(to);
		__int128 least = ptx_is_signed(to) ? -((__int128)1 << (bits - 1)) : 0;
		__int128 most = ((__int128)1 << (ptx_is_signed(to) ? bits - 1 : bits)) - 1;
		return (uint64_t)(value < least ? least : value > most ? most : value);
	}
	return ptx_is_signed(from) ? (uint64_t)ptx_signed(from, a) : a;
}

static bool tested(const struct ptx_instruction *i, uint64_t a)
{
	double value = i->type == PTX_F32 ? as_f32(a) : as_f64(a);
	int kind = i->type == PTX_F32 ? fpclassify(as_f32(a)) : fpclassify(value);
	switch (i->mode) {
	case M_FINITE: return isfinite(value);
	case M_INFINITE: return isinf(value);
	case M_NUMBER: return !isnan(value);
	case M_NOTANUMBER: return isnan(value);
	case M_NORMAL: return kind == FP_NORMAL;
	default: return kind == FP_SUBNORMAL;
	}
}

static bool combined(enum ptx_mode mode, bool result, bool other)
{
	switch (mode) {
	case M_AND: return result && other;
	case M_OR: return result || other;
	case M_XOR: return result != other;
	default: return result;
	}
}

uint64_t ptx_compute(const struct ptx_instruction *i, const uint64_t *slots)
{
	enum ptx_type type = (enum ptx_type)i->type;
	uint64_t v[5] = {0};
	for (int k = 1; k <= 4; k++) {
		if (i->slot[k] == PTX_NO_SLOT)
			break;
		v[k] = slots[i->slot[k]];
		if (i->negate >> k & 1)
			v[k] = !v[k];
	}
	switch (i->op) {
	case OP_MOV: return v[1];
	case OP_SELP: return v[3] & 1 ? v[1] : v[2];
	case OP_SLCT: {
		bool first = i->other_type == PTX_F32 ? as_f32(v[3]) >= 0 : (int32_t)v[3] >= 0;
		return first ? v[1] : v[2];
	}
	case OP_CVT: return convert(i, v[1], v[2]);
	case OP_SETP: return combined((enum ptx_mode)i->second_mode, compared(i, type, v[1], v[2]), v[3] & 1);
	case OP_SET: {
		bool result = combined((enum ptx_mode)i->second_mode, compared(i, (enum ptx_type)i->other_type, v[1], v[2]), v[3] & 1);
		return ptx_is_float(type) ? from_real(type, result) : result ? 0xffffffff : 0;
	}
	case OP_TESTP: return tested(i, v[1]);
	}
	if (type == PTX_F32)
		return compute_f32(i, v[1], v[2], v[3]);
	if (ptx_is_pair(type))
		return compute_pair(i, type, v[1], v[2], v[3]);
	if (ptx_is_half(type))
		return compute_half(i, type, v[1], v[2], v[3]);
	if (type == PTX_F64)
		return from_f64(real(i, as_f64(v[1]), as_f64(v[2]), as_f64(v[3])));
	return compute_integer(i, ptx_mask(type, v[1]), ptx_mask(type, v[2]), v[3], v[4]);
}

uint64_t ptx_carry(const struct ptx_instruction *i, uint64_t a, uint64_t b, uint64_t c, bool *carry)
{
	enum ptx_type type = (enum ptx_type)i->type;
	unsigned __int128 in = i->carry & CARRY_IN ? *carry : 0, first = ptx_mask(type, a), second = ptx_mask(type, b), sum;
	if (i->carry_op == OP_MAD) {
		first = ptx_mask(type, multiply(i, type, a, b));
		second = ptx_mask(type, c);
	}
	sum = i->carry_op == OP_SUB ? first - second - in : first + second + in;
	if (i->carry & CARRY_OUT)
		*carry = sum >> 8 * ptx_width(type) & 1;
	return (uint64_t)sum;
}

uint64_t ptx_atomic(const struct ptx_instruction *i, uint64_t old, uint64_t b, uint64_t c)
{
	static const struct ptx_instruction sum = {.op = OP_ADD};
	enum ptx_type type = (enum ptx_type)i->type;
	bool is_signed = ptx_is_signed(type);
	int64_t sa = ptx_signed(type, old), sb = ptx_signed(type, b);
	old = ptx_mask(type, old);
	b = ptx_mask(type, b);
	switch (i->mode) {
	case M_ADD:
		if (ptx_is_half(type))
			return ptx_is_pair(type) ? compute_pair(&sum, type, old, b, 0) : compute_half(&sum, type, old, b, 0);
		return type == PTX_F32 ? from_f32(as_f32(old) + as_f32(b)) : type == PTX_F64 ? from_f64(as_f64(old) + as_f64(b)) : old + b;
	case M_MIN: return is_signed ? (sa < sb ? old : b) : old < b ? old : b;
	case M_MAX: return is_signed ? (sa > sb ? old : b) : old > b ? old : b;
	case M_AND: return old & b;
	case M_OR: return old | b;
	case M_XOR: return old ^ b;
	case M_INC: return old >= b ? 0 : old + 1;
	case M_DEC: return old == 0 || old > b ? b : old - 1;
	case M_CAS: return old == b ? c : old;
	default: return b; /* exch */
	}
}
