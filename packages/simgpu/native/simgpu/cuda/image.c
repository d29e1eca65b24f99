/*
 * The forms of code that programs pass, and the PTX in it: PTX itself; fat binaries of nvcc with PTX among their entries, plain or
 * compressed with LZ4; and what cuLinkComplete makes here. Machine code of real GPUs is refused as the driver refuses
 * code for another GPU.
 *
 * The machine code of a simulated GPU is PTX behind the header of an ELF file for NVIDIA's machine number.
 * Layout of fat binaries: a header {magic, version, own size, size of the entries}, then entries, each with its own header
 * {kind 1 PTX or 2 ELF, version, own size, size of payload} and at 16 the compressed size, at 28 the architecture,
 * at 40 the flags, at 56 the size when decompressed.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

#define FAT_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u
#define FLAG_LZ4 0x2000u
#define FLAG_ZSTD 0x8000u
#define MAX_TEXT (64u << 20)
#define ELF_HEADER 64

static const char own_mark[8] = "SIMGPU1";

static uint64_t word(const uint8_t *at, int bytes)
{
	uint64_t value = 0;
	memcpy(&value, at, (size_t)bytes);
	return value;
}

static char *copy(const uint8_t *from, size_t length)
{
	char *text = malloc(length + 1);
	if (text) {
		memcpy(text, from, length);
		text[length] = 0;
	}
	return text;
}

/* A length of LZ4: 15 in the token goes on in further bytes, up to one that is not 255. */
static bool more(const uint8_t **at, const uint8_t *end, size_t *length)
{
	uint8_t next = 255;
	for (bool longer = *length == 15; longer && next == 255; *length += next) {
		if (*at == end)
			return false;
		next = *(*at)++;
	}
	return true;
}

/* One block of LZ4; false when it is broken or does not fit. */
static bool decompress(const uint8_t *at, size_t size, uint8_t *to, size_t room, size_t *written)
{
	const uint8_t *end = at + size;
	size_t done = 0;
	while (at < end) {
		uint8_t token = *at++;
		size_t literals = token >> 4, match = token & 15;
		if (!more(&at, end, &literals) || literals > (size_t)(end - at) || literals > room - done)
			return false;
		memcpy(to + done, at, literals);
		done += literals;
		at += literals;
		if (at == end)
			break; /* the last one has no match */
		if (end - at < 2)
			return false;
		size_t distance = word(at, 2);
		at += 2;
		if (!more(&at, end, &match) || !distance || distance > done || (match += 4) > room - done)
			return false;
		for (; match; match--, done++)
			to[done] = to[done - distance];
	}
	*written = done;
	return true;
}

static char *payload(const uint8_t *entry)
{
	uint64_t header = word(entry + 4, 4), size = word(entry + 8, 8), flags = word(entry + 40, 8);
	if (!(flags & FLAG_LZ4))
		return copy(entry + header, size);
	uint64_t room = header >= 64 && word(entry + 16, 4) <= size ? word(entry + 56, 8) : 0;
	size_t written = 0;
	char *text = room && room <= MAX_TEXT ? malloc(room + 1) : NULL;
	if (!text || !decompress(entry + header, word(entry + 16, 4), (uint8_t *)text, room, &written)) {
		free(text);
		return NULL;
	}
	text[written] = 0;
	return text;
}

/* The newest PTX that this GPU can run; without any, the driver has nothing to load. */
static CUresult from_fat(const uint8_t *fat, uint32_t architecture, char **text)
{
	const uint8_t *best = NULL, *at = fat + word(fat + 6, 2), *end = at + word(fat + 8, 8);
	while (end - at >= 48) {
		uint64_t header = word(at + 4, 4), size = word(at + 8, 8), own = word(at + 28, 4);
		if (header < 48 || header > (uint64_t)(end - at) || size > (uint64_t)(end - at) - header)
			return CUDA_INVALID_IMAGE;
		bool usable = word(at, 2) == 1 && own <= architecture && !(word(at + 40, 8) & FLAG_ZSTD);
		if (usable && (!best || word(best + 28, 4) < own))
			best = at;
		at += header + size;
	}
	*text = best ? payload(best) : NULL;
	return *text ? CUDA_SUCCESS : best ? CUDA_INVALID_IMAGE : CUDA_NO_BINARY_FOR_GPU;
}

CUresult cuda_image_text(const void *image, CUdevice device, char **text)
{
	const uint8_t *at = image;
	const struct simgpu_gpu *gpu = cuda_gpu(device);
	*text = NULL;
	/* Texts may be shorter than a magic number, so they are compared by bytes. */
	if (!strncmp((const char *)at, "\xb1\x43\x62\x46", 4)) {
		const uint8_t *inner = (const uint8_t *)(uintptr_t)word(at + 8, 8);
		uint64_t version = word(at + 4, 4);
		if (version < 1 || version > 2 || !inner || word(inner, 4) != FAT_MAGIC)
			return CUDA_INVALID_IMAGE;
		if (version == 2)
			return CUDA_NO_BINARY_FOR_GPU; /* nvcc's linker made it: machine code only */
		at = inner;
	}
	if (!strncmp((const char *)at, "\x50\xed\x55\xba", 4))
		return from_fat(at, gpu->compute_major * 10 + gpu->compute_minor, text);
	if (!strncmp((const char *)at, "\x7f" "ELF", 4)) {
		if (memcmp(at + ELF_HEADER, own_mark, sizeof own_mark))
			return CUDA_NO_BINARY_FOR_GPU;
		at += ELF_HEADER + sizeof own_mark;
	}
	*text = copy(at, strlen((const char *)at));
	return *text ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

void *cuda_image_make(const char *text, size_t *size)
{
	static const uint8_t header[ELF_HEADER] = {
		0x7f, 'E', 'L', 'F', 2, 1, 1, 0x33, 7, [16] = 2, [18] = 190, [20] = 1, [52] = ELF_HEADER, [54] = 56, [58] = 64,
	};
	size_t length = strlen(text) + 1;
	uint8_t *image = malloc(ELF_HEADER + sizeof own_mark + length);
	if (!image)
		return NULL;
	memcpy(image, header, ELF_HEADER);
	memcpy(image + ELF_HEADER, own_mark, sizeof own_mark);
	memcpy(image + ELF_HEADER + sizeof own_mark, text, length);
	*size = ELF_HEADER + sizeof own_mark + length;
	return image;
}
