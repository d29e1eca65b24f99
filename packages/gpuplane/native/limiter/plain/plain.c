/*
 * Libraries with the names libcuda.so and libnvidia-ml.so, and nothing in them: each needs the limiter's by its full name.
 *
 * Some programs ask the loader for the name without a version (numba does so first). Preloaded libraries answer only to
 * their own SONAME, so without these such a program would get the driver's file, past the limiter.
 */
typedef int plain_is_not_empty;
