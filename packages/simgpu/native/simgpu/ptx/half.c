/* Numbers of 16 bits, f16 and bf16: in double, where they are exact, and rounded back to the nearest, ties to even. */
#include "ptx.h"

#include <math.h>

struct format {
	int mantissa, bias;
};

static struct format format_of(enum ptx_type type)
{
	return type == PTX_BF16 || type == PTX_BF16X2 ? (struct format){7, 127} : (struct format){10, 15};
}

bool ptx_is_half(enum ptx_type type)
{
	return type >= PTX_F16 && type <= PTX_BF16X2;
}

bool ptx_is_pair(enum ptx_type type)
{
	return type == PTX_F16X2 || type == PTX_BF16X2;
}

double ptx_from_half(enum ptx_type type, uint64_t bits)
{
	struct format f = format_of(type);
	int exponent = (int)(bits >> f.mantissa) & (2 * f.bias + 1);
	double fraction = (double)(bits & ((1u << f.mantissa) - 1)), value;
	if (exponent == 2 * f.bias + 1)
		value = fraction != 0 ? (double)NAN : (double)INFINITY;
	else if (!exponent)
		value = ldexp(fraction, 1 - f.bias - f.mantissa);
	else
		value = ldexp(fraction + (double)(1u << f.mantissa), exponent - f.bias - f.mantissa);
	return bits & 0x8000 ? -value : value;
}

uint64_t ptx_to_half(enum ptx_type type, double value)
{
	struct format f = format_of(type);
	uint64_t sign = signbit(value) ? 0x8000 : 0, infinite = (2 * (uint64_t)f.bias + 1) << f.mantissa;
	int exponent;
	if (isnan(value))
		return 0x7fff;
	if (isinf(value))
		return sign | infinite;
	frexp(value, &exponent);
	/* Below the smallest normal number the distance between neighbours stays the same. */
	exponent = value == 0 || exponent - 1 < 1 - f.bias ? 1 - f.bias : exponent - 1;
	uint64_t steps = (uint64_t)nearbyint(ldexp(fabs(value), f.mantissa - exponent));
	/* The first digit of a normal number counts one up in the exponent, and so does what is rounded up to the next. */
	uint64_t bits = ((uint64_t)(exponent + f.bias - 1) << f.mantissa) + steps;
	return sign | (bits < infinite ? bits : infinite);
}
