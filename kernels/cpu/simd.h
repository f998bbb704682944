// Vectors of f32 for the instruction set that a file is compiled for, with loads and stores that convert from
// and to bf16 and f16, and mathematical functions accurate to about two units in the last place. All in the
// set's own namespace and always inlined. NaN and infinities follow IEEE rules throughout.
//
// The polynomials are minimax fits of this project over the intervals stated beside them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/tensor/dtype.h"

#define HET_INLINE inline __attribute__((always_inline))

namespace het::cpu::HET_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif
inline constexpr int kLanes = kVectorBytes / 4;

using Vector = float __attribute__((vector_size(kVectorBytes)));
using IntVector = int32_t __attribute__((vector_size(kVectorBytes)));
using WordVector = uint32_t __attribute__((vector_size(kVectorBytes)));
using HalfVector = uint16_t __attribute__((vector_size(kVectorBytes / 2)));

HET_INLINE Vector splat(float value) { return value - Vector{}; }
HET_INLINE IntVector bits_of(Vector v) { return reinterpret_cast<IntVector>(v); }
HET_INLINE Vector from_bits(IntVector v) { return reinterpret_cast<Vector>(v); }
HET_INLINE Vector from_bits(WordVector v) { return reinterpret_cast<Vector>(v); }

// How many lanes a load or store touches: all, or the first few, 0 to kLanes, at the end of a row.
struct Full {};
struct Tail {
  int count;
};

// ---- bf16 and f16 ----

HET_INLINE Vector widen_bf16(HalfVector h) { return from_bits(__builtin_convertvector(h, WordVector) << 16); }

// Round to nearest even; NaN stays NaN. The instruction makes denormals zero.
HET_INLINE HalfVector narrow_bf16(Vector v) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<HalfVector>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(v)));
#else
  const WordVector u = reinterpret_cast<WordVector>(v);
  const WordVector rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const WordVector quiet = (u >> 16) | 0x40u;
  return __builtin_convertvector(v == v ? rounded : quiet, HalfVector);
#endif
}

HET_INLINE Vector widen_f16(HalfVector h) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vector>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(h)));
#elif defined(__F16C__)
  return reinterpret_cast<Vector>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(h)));
#else
  Vector v;
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(std::bit_cast<f16>(static_cast<uint16_t>(h[i])));
  return v;
#endif
}

HET_INLINE HalfVector narrow_f16(Vector v) {
#if defined(__AVX512F__)
  return reinterpret_cast<HalfVector>(
      _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  return reinterpret_cast<HalfVector>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  HalfVector h;
  for (int i = 0; i < kLanes; ++i) h[i] = f16(v[i]).bits;
  return h;
#endif
}

// ---- loads and stores; a tail load gives zero in the lanes beyond it ----

HET_INLINE Vector load(const float* p, Full = {}) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
HET_INLINE Vector load(const bf16* p, Full = {}) {
  HalfVector h;
  std::memcpy(&h, p, sizeof h);
  return widen_bf16(h);
}
HET_INLINE Vector load(const f16* p, Full = {}) {
  HalfVector h;
  std::memcpy(&h, p, sizeof h);
  return widen_f16(h);
}
HET_INLINE void store(float* p, Vector v, Full = {}) { std::memcpy(p, &v, sizeof v); }
HET_INLINE void store_bits(bf16* p, HalfVector h, Full = {}) {
  std::memcpy(static_cast<void*>(p), &h, sizeof h);
}
HET_INLINE void store(bf16* p, Vector v, Full = {}) { store_bits(p, narrow_bf16(v)); }
HET_INLINE void store(f16* p, Vector v, Full = {}) {
  const HalfVector h = narrow_f16(v);
  std::memcpy(static_cast<void*>(p), &h, sizeof h);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// -1 in the first lanes, 0 in the others.
HET_INLINE __m256i first_lanes(Tail tail) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(tail.count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif
HET_INLINE Vector load(const float* p, Tail tail) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vector>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << tail.count) - 1), p));
#elif defined(__AVX2__)
  return reinterpret_cast<Vector>(_mm256_maskload_ps(p, first_lanes(tail)));
#else
  Vector v{};
  for (int i = 0; i < tail.count; ++i) v[i] = p[i];
  return v;
#endif
}
HET_INLINE void store(float* p, Vector v, Tail tail) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << tail.count) - 1), reinterpret_cast<__m512>(v));
#elif defined(__AVX2__)
  // Four, two and one of them: stores by a mask take dozens of cycles on AMD's processors.
  if (tail.count == kLanes) return store(p, v);
  const __m256 all = reinterpret_cast<__m256>(v);
  __m128 next = _mm256_castps256_ps128(all);
  if (tail.count & 4) {
    _mm_storeu_ps(p, next);
    next = _mm256_extractf128_ps(all, 1);
    p += 4;
  }
  if (tail.count & 2) {
    _mm_storel_pi(reinterpret_cast<__m64*>(p), next);
    next = _mm_movehl_ps(next, next);
    p += 2;
  }
  if (tail.count & 1) _mm_store_ss(p, next);
#else
  for (int i = 0; i < tail.count; ++i) p[i] = v[i];
#endif
}
HET_INLINE HalfVector load_halves(const void* p, Tail tail) {
#if defined(__AVX512F__)
  return reinterpret_cast<HalfVector>(
      _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << tail.count) - 1), p));
#elif defined(__AVX2__)
  HalfVector h;
  if (tail.count == kLanes) {
    std::memcpy(&h, p, sizeof h);
    return h;
  }
  const auto* from = static_cast<const std::byte*>(p);
  uint64_t halves[2] = {}, rest = 0;  // four, and the others
  if (tail.count & 4) {
    std::memcpy(halves, from, 8);
    from += 8;
  }
  if (tail.count & 1) std::memcpy(&rest, from + 2 * (tail.count & 2), 2);
  if (tail.count & 2) {
    uint32_t two;
    std::memcpy(&two, from, 4);
    rest = rest << 32 | two;
  }
  halves[tail.count / 4] = rest;
  std::memcpy(&h, halves, sizeof h);
  return h;
#else
  HalfVector h{};
  const uint16_t* from = static_cast<const uint16_t*>(p);
  for (int i = 0; i < tail.count; ++i) h[i] = from[i];
  return h;
#endif
}
HET_INLINE void store_halves(void* p, HalfVector h, Tail tail) {
#if defined(__AVX512F__)
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << tail.count) - 1), reinterpret_cast<__m256i>(h));
#elif defined(__AVX2__)
  auto* to = static_cast<std::byte*>(p);
  if (tail.count == kLanes) {
    std::memcpy(to, &h, sizeof h);
    return;
  }
  uint64_t halves[2];
  std::memcpy(halves, &h, sizeof halves);
  uint64_t next = halves[0];
  if (tail.count & 4) {
    std::memcpy(to, &next, 8);
    next = halves[1];
    to += 8;
  }
  if (tail.count & 2) {
    std::memcpy(to, &next, 4);
    next >>= 32;
    to += 4;
  }
  if (tail.count & 1) std::memcpy(to, &next, 2);
#else
  uint16_t* to = static_cast<uint16_t*>(p);
  for (int i = 0; i < tail.count; ++i) to[i] = h[i];
#endif
}
HET_INLINE Vector load(const bf16* p, Tail tail) { return widen_bf16(load_halves(p, tail)); }
HET_INLINE Vector load(const f16* p, Tail tail) { return widen_f16(load_halves(p, tail)); }
HET_INLINE void store_bits(bf16* p, HalfVector h, Tail tail) { store_halves(p, h, tail); }
HET_INLINE void store(bf16* p, Vector v, Tail tail) { store_halves(p, narrow_bf16(v), tail); }
HET_INLINE void store(f16* p, Vector v, Tail tail) { store_halves(p, narrow_f16(v), tail); }

// body(index, Full or Tail) over [0, count) in steps of kLanes.
template <typename Body>
HET_INLINE void for_lanes(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, Full{});
  if (i < count) body(i, Tail{static_cast<int>(count - i)});
}

// Lanes at and beyond the tail replaced by `other`.
HET_INLINE Vector keep(Vector v, Full, float) { return v; }
HET_INLINE Vector keep(Vector v, Tail tail, float other) {
  IntVector lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane < tail.count ? v : splat(other);
}

// ---- selections and sums over lanes (a fixed tree, so always the same rounding) ----

// NaN in `a` or `b` gives NaN.
HET_INLINE Vector minimum(Vector a, Vector b) {
  const Vector smaller = a < b ? a : b;
  return a == a ? smaller : a;
}
HET_INLINE Vector maximum(Vector a, Vector b) {
  const Vector larger = a > b ? a : b;
  return a == a ? larger : a;
}

template <typename Join>
HET_INLINE float join_lanes(Vector v, const Join& join) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = join(lanes[i], lanes[i + half]);
  return lanes[0];
}
HET_INLINE float sum_of(Vector v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
  return join_lanes(v, [](float a, float b) { return a + b; });
#endif
}
HET_INLINE float maximum_of(Vector v) {
  return join_lanes(v, [](float a, float b) { return a != a ? a : b > a || b != b ? b : a; });
}

// ---- functions ----

HET_INLINE Vector sqrt(Vector x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vector>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vector>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#else
  Vector y;
  for (int i = 0; i < kLanes; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
#endif
}

// NaN stays NaN.
HET_INLINE Vector clamp(Vector x, float low, float high) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256 below = _mm256_min_ps(reinterpret_cast<__m256>(splat(high)), reinterpret_cast<__m256>(x));
  return reinterpret_cast<Vector>(_mm256_max_ps(reinterpret_cast<__m256>(splat(low)), below));
#else
  x = x > high ? splat(high) : x;
  return x < low ? splat(low) : x;
#endif
}

HET_INLINE Vector absolute(Vector x) { return from_bits(bits_of(x) & 0x7fffffff); }
HET_INLINE Vector with_sign_of(Vector magnitude, Vector sign) {
  return from_bits((bits_of(magnitude) & 0x7fffffff) | (bits_of(sign) & static_cast<int32_t>(0x80000000u)));
}

// x = n ln 2 + r, |r| <= ln 2 / 2: e^r = 1 + r + r^2 q(r), and n in the low bits of `shifted`.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
HET_INLINE Vector exp_of_rest(Vector x, Vector& shifted) {
  shifted = x * 1.44269504f + kRound;
  const Vector n = shifted - kRound;
  Vector r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vector q = r * 0.00138131448f + 0.00836941879f;
  q = q * r + 0.041668456f;
  q = q * r + 0.166665152f;
  q = q * r + 0.49999994f;
  return (q * (r * r) + r) + 1.0f;
}

// e^r times 2^n in two steps, so that results below the least normal number are right too.
HET_INLINE Vector exp(Vector x) {
  Vector shifted;  // e^89 is beyond the largest f32, e^-104 below half the least
  const Vector e = exp_of_rest(clamp(x, -104.0f, 89.0f), shifted);
#if defined(__AVX512F__)
  return reinterpret_cast<Vector>(
      _mm512_scalef_ps(reinterpret_cast<__m512>(e), reinterpret_cast<__m512>(shifted - kRound)));
#else
  const IntVector power = bits_of(shifted) - std::bit_cast<int32_t>(kRound);
  const IntVector half = power >> 1;
  return e * from_bits((half + 127) << 23) * from_bits((power - half + 127) << 23);
#endif
}

// e^x with x clamped to [-87, 87], so never a subnormal number; of NaN it may be any number.
HET_INLINE Vector exp_normal(Vector x) {
  Vector shifted;
  const Vector e = exp_of_rest(clamp(x, -87.0f, 87.0f), shifted);
#if defined(__AVX512F__)
  return reinterpret_cast<Vector>(
      _mm512_scalef_ps(reinterpret_cast<__m512>(e), reinterpret_cast<__m512>(shifted - kRound)));
#else
  return from_bits(bits_of(e) + (bits_of(shifted) << 23));
#endif
}

// x = 2^e m, sqrt(1/2) <= m < sqrt(2), f = m - 1, s = f / (2 + f): ln m = f - s (f - s^2 q(s^2)).
HET_INLINE Vector log(Vector x) {
  const IntVector tiny = x < 0x1p-126f;
  const Vector scaled = tiny ? x * 0x1p23f : x;
  const IntVector offset = bits_of(scaled) - 0x3f3504f3;
  const IntVector exponent = offset >> 23;
  const Vector f = from_bits(bits_of(scaled) - (exponent << 23)) - 1.0f;
  const Vector e = __builtin_convertvector(exponent - (tiny & 23), Vector);
  const Vector s = f / (f + 2.0f);
  const Vector w = s * s;
  Vector q = w * 0.236106649f + 0.285358816f;
  q = q * w + 0.400003552f;
  q = q * w + 0.666666627f;
  const Vector low = e * -2.12194440e-4f - s * (f - w * q);
  Vector y = e * 0.693359375f + (f + low);
  y = x > 0.0f ? y : splat(__builtin_nanf(""));
  y = x == 0.0f ? splat(-__builtin_inff()) : y;
  return x == __builtin_inff() ? x : y;
}

// |x| < 0.625: x + x^3 q(x^2); beyond: 1 - 2 / (e^2|x| + 1).
HET_INLINE Vector tanh(Vector x) {
  const Vector u = x * x;
  Vector q = u * -0.00551516376f + 0.0204694197f;
  q = q * u + -0.0536880232f;
  q = q * u + 0.133308306f;
  q = q * u + -0.333332598f;
  const Vector small = x + x * (u * q);
  const Vector a = absolute(x);
  const Vector large = with_sign_of(1.0f - 2.0f / (exp(a + a) + 1.0f), x);
  return a < 0.625f ? small : large;
}

HET_INLINE Vector sigmoid(Vector x) { return 1.0f / (1.0f + exp(-x)); }

// |x| < 1: x q(x^2); beyond: 1 - e^p(|x|) with p = ln erfc, until erf rounds to 1.
HET_INLINE Vector erf(Vector x) {
  const Vector u = x * x;
  Vector q = u * 7.85386146e-05f + -0.000801019371f;
  q = q * u + 0.00518832775f;
  q = q * u + -0.0268538129f;
  q = q * u + 0.112835854f;
  q = q * u + -0.37612626f;
  q = q * u + 1.12837911f;
  const Vector a = absolute(x);
  const Vector b = a > 3.95f ? splat(3.95f) : a;
  Vector p = b * -2.16976005e-05f + 0.000441472454f;
  p = p * b + -0.00420528371f;
  p = p * b + 0.0252103359f;
  p = p * b + -0.108422093f;
  p = p * b + -0.633216381f;
  p = p * b + -1.12958026f;
  p = p * b + 0.000188467195f;
  return a < 1.0f ? x * q : with_sign_of(1.0f - exp(p), x);
}

// Sine and cosine of `angle` (f64, so that large positions keep their phase), one at a time:
// angle = k pi/2 + r, |r| <= pi/4.
struct SineCosine {
  float sine, cosine;
};
HET_INLINE SineCosine sine_cosine(double angle) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = angle * 0.63661977236758134308 + kRound;
  const double k = shifted - kRound;
  const float r = static_cast<float>((angle - k * 1.57079632679489655800) - k * 6.12323399573676603587e-17);
  const float u = r * r;
  const float q = ((u * 2.71736667e-06f + -0.000198392328f) * u + 0.00833332911f) * u + -0.166666672f;
  const float s = r + r * (u * q);
  const float c = 1.0f + (u * -0.5f + u * u * ((u * 2.44256807e-05f + -0.00138872513f) * u + 0.0416666456f));
  const uint32_t quadrant = static_cast<uint32_t>(std::bit_cast<uint64_t>(shifted));
  const bool swap = quadrant & 1;
  const uint32_t sine_sign = (quadrant & 2) << 30, cosine_sign = ((quadrant + 1) & 2) << 30;
  return {std::bit_cast<float>(std::bit_cast<uint32_t>(swap ? c : s) ^ sine_sign),
          std::bit_cast<float>(std::bit_cast<uint32_t>(swap ? s : c) ^ cosine_sign)};
}

}  // namespace het::cpu::HET_ISA
