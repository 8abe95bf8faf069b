"""Single precision elementary functions: C text and coefficients; see `c_math` for the notation.

Methods: Cody and Waite, *Software Manual for the Elementary Functions* (1980), for the argument
reductions; exp(x)-1 and log(1+x) with the power of two folded into one fused operation; the
error function as an odd polynomial near zero and 1 - exp(polynomial) beyond. The coefficients are
minimax fits (Remez exchange in 60 digits, then rounding to float one by one, refitting the rest).
"""

from __future__ import annotations

from typing import Final

COEFFICIENTS: Final[dict[str, tuple[str, ...]]] = {
    # (e^r - 1 - r) / r^2 on |r| <= ln(2)/2
    "EXPM1_F32": (
        "0x1.fffffep-2", "0x1.555494p-3", "0x1.55574ep-5", "0x1.123e46p-7", "0x1.6b39ccp-10",
    ),
    # (2^r - 1) / r on |r| <= 1/2
    "EXP2_F32": (
        "0x1.62e432p-1", "0x1.ebfc1ap-3", "0x1.c6ad62p-5", "0x1.3af9c6p-7", "0x1.5fe476p-10",
        "0x1.67b504p-13",
    ),
    # (log(1+f) - f + f^2/2) / f^3 on |f| <= 1/3
    "LOG_F32": (
        "0x1.55550cp-2", "-0x1.ffff78p-3", "0x1.99d28ep-3", "-0x1.5589b4p-3", "0x1.1e848ep-3",
        "-0x1.f4ded6p-4", "0x1.20822cp-3", "-0x1.04cba2p-3",
    ),
    # (sin(r)/r - 1) / r^2 and (cos(r) - 1 + r^2/2) / r^4 on |r| <= pi/4, in r^2
    "SIN_F32": ("-0x1.555556p-3", "0x1.111108p-7", "-0x1.a00f18p-13", "0x1.6caf8cp-19"),
    "COS_F32": ("0x1.55554ep-5", "-0x1.6c0e26p-10", "0x1.9a63c2p-16"),
    # (asin(x)/x - 1) / x^2 on |x| <= 1/2 and (atan(x)/x - 1) / x^2 on |x| <= 1, in x^2
    "ASIN_F32": (
        "0x1.5555acp-3", "0x1.3308c8p-4", "0x1.73eee2p-5", "0x1.90f42ep-6", "0x1.55cb3ap-5",
    ),
    "ATAN_F32": (
        "-0x1.55553ep-2", "0x1.9991e4p-3", "-0x1.242086p-3", "0x1.c08c48p-4", "-0x1.5808e4p-4",
        "0x1.da2884p-5", "-0x1.fd78f0p-6", "0x1.641c90p-7", "-0x1.d3458ep-10",
    ),
    # (sinh(x)/x - 1) / x^2 on |x| <= 1, in x^2
    "SINH_F32": ("0x1.555556p-3", "0x1.111138p-7", "0x1.9ffc70p-13", "0x1.7a7314p-19"),
    # erf(x)/x - 1 on |x| <= 0.93, in x^2; log(erfc(x)) on 0.92 <= x <= 4
    "ERF_F32": (
        "0x1.06eba8p-3", "-0x1.812740p-2", "0x1.ce2d64p-4", "-0x1.b8011ep-6", "0x1.544a76p-8",
        "-0x1.a60f6ap-11", "0x1.4f7fc2p-14",
    ),
    "ERFC_LOG_F32": (
        "-0x1.b236a4p-13", "-0x1.20ac2ep+0", "-0x1.4647b8p-1", "-0x1.a9653ep-4", "0x1.6b8ec2p-6",
        "-0x1.8da270p-9", "0x1.98d6f6p-13",
    ),
}  # fmt: skip

SOURCE: Final = r"""
FN vf32 rsqrt_f32(vf32 a) { return 1.0f / sqrt_f32(a); }
FN vf32 reciprocal_f32(vf32 a) { return 1.0f / a; }

FN vf32 reduce_exp_f32(vf32 x, vf32 n) {
  vf32 r = madd_f32(n, splat_f32(-0x1.62e400p-1f), x);
  return madd_f32(n, splat_f32(-0x1.7f7d1cp-20f), r);
}
FN vf32 nearest_f32(vf32 x) { return (x + 12582912.0f) - 12582912.0f; }
FN vf32 exp_core_f32(vf32 r) { return madd_f32(POLY(r, EXPM1_F32), r * r, r) + 1.0f; }
FN vf32 exp_f32(vf32 a) {
  vf32 x = highest_f32(splat_f32(-104.0f), lowest_f32(splat_f32(89.0f), a));
  vf32 n = nearest_f32(x * 0x1.715476p0f);
  return ldexp_f32(exp_core_f32(reduce_exp_f32(x, n)), n);
}
FN vf32 exp_half_f32(vf32 a) {
  vf32 x = lowest_f32(splat_f32(90.0f), a);
  vf32 n = nearest_f32(x * 0x1.715476p0f);
  return ldexp_f32(exp_core_f32(reduce_exp_f32(x, n)), n - 1.0f);
}
FN vf32 exp2_f32(vf32 a) {
  vf32 x = highest_f32(splat_f32(-151.0f), lowest_f32(splat_f32(129.0f), a));
  vf32 n = nearest_f32(x);
  vf32 r = x - n;
  return ldexp_f32(madd_f32(POLY(r, EXP2_F32), r, splat_f32(1.0f)), n);
}
FN vf32 pow2_f32(vf32 n) {
  return asf_f32((vi32)((vu32)asi_f32(n + 12583039.0f) << 23));
}
FN vf32 expm1_core_f32(vf32 x) {
  vf32 n = nearest_f32(x * 0x1.715476p0f);
  vf32 r = reduce_exp_f32(x, n);
  vf32 s = pow2_f32(n);
  return madd_f32(s, madd_f32(POLY(r, EXPM1_F32), r * r, r), s - 1.0f);
}
FN vf32 expm1_f32(vf32 a) {
  vf32 x = highest_f32(splat_f32(-20.0f), lowest_f32(splat_f32(89.0f), a));
  vf32 n = nearest_f32(x * 0x1.715476p0f);
  vf32 r = reduce_exp_f32(x, n);
  vf32 s = pow2_f32(n - 1.0f);
  vf32 half = madd_f32(s, madd_f32(POLY(r, EXPM1_F32), r * r, r), s - 0.5f);
  return pick_f32(abs_f32(a) < 0x1p-40f, a, half + half);
}
FN vf32 sigmoid_f32(vf32 a) {
  vf32 e = exp_f32(-abs_f32(a)), d = 1.0f + e;
  vf32 q = pick_f32(a < 0.0f, e, splat_f32(1.0f)) / d;
  vf32 inverse = pick_f32(a < 0.0f, 1.0f - q, q);
  return madd_f32(q * ((d - 1.0f) - e), inverse, q);
}
FN vf32 tanh_f32(vf32 a) {
  vf32 x = lowest_f32(splat_f32(10.0f), abs_f32(a));
  vf32 t = expm1_core_f32(x + x), d = t + 2.0f;
  vf32 q = t / d;
  vf32 l = pick_f32(t < 2.0f, t - (d - 2.0f), splat_f32(0.0f));
  q = madd_f32(q * l, madd_f32(q, splat_f32(0.5f), splat_f32(-0.5f)), q);
  return copysign_f32(q, a);
}
FN vf32 sinh_f32(vf32 a) {
  vf32 x = abs_f32(a);
  vf32 e = exp_half_f32(x);
  vf32 z = a * a;
  vf32 near = madd_f32(POLY(z, SINH_F32), z * a, a);
  return pick_f32(x < 1.0f, near, copysign_f32(e - 0.25f / e, a));
}
FN vf32 cosh_f32(vf32 a) {
  vf32 e = exp_half_f32(abs_f32(a));
  return e + 0.25f / e;
}

FN vf32 log_domain_f32(vf32 a, vf32 r) {
  r = pick_f32(a < __builtin_inff(), r, a);
  vf32 low = pick_f32(a == 0.0f, splat_f32(-__builtin_inff()), splat_f32(__builtin_nanf("")));
  return pick_f32(a <= 0.0f, low, r);
}
FN vf32 log_split_f32(vf32 a, vf32 *exponent) {
  vi32 small = a < 0x1p-126f;
  vi32 i = asi_f32(pick_f32(small, a * 0x1p23f, a)) - 0x3f2aaaab;
  *exponent = cvt_i32_f32(i >> 23) - pick_f32(small, splat_f32(23.0f), splat_f32(0.0f));
  return asf_f32((i & 0x7fffff) + 0x3f2aaaab) - 1.0f;
}
FN vf32 log_f32(vf32 a) {
  vf32 e, f = log_split_f32(a, &e);
  vf32 z = f * f;
  vf32 r = madd_f32(POLY(f, LOG_F32), z * f, e * 0x1.7f7d1cp-20f);
  r = madd_f32(splat_f32(-0.5f), z, r) + f;
  return log_domain_f32(a, madd_f32(e, splat_f32(0x1.62e400p-1f), r));
}
FN vf32 log2_f32(vf32 a) {
  vf32 e, f = log_split_f32(a, &e);
  vf32 z = f * f;
  vf32 g = madd_f32(POLY(f, LOG_F32), z * f, z * -0.5f);
  vf32 r = madd_f32(f, splat_f32(0x1.47652cp-12f), g * 0x1.715476p0f);
  return log_domain_f32(a, madd_f32(f, splat_f32(0x1.714p0f), r) + e);
}
FN vf32 log10_f32(vf32 a) {
  vf32 e, f = log_split_f32(a, &e);
  vf32 z = f * f;
  vf32 g = madd_f32(POLY(f, LOG_F32), z * f, z * -0.5f);
  vf32 r = madd_f32(e, splat_f32(0x1.3509f8p-18f), f * 0x1.7b1526p-14f);
  r = madd_f32(g, splat_f32(0x1.bcb7b2p-2f), r);
  r = madd_f32(f, splat_f32(0x1.bcap-2f), r);
  return log_domain_f32(a, madd_f32(e, splat_f32(0x1.344p-2f), r));
}
FN vf32 logaddexp_f32(vf32 a, vf32 b) {
  vf32 m = max_f32(a, b);
  vf32 r = m + log1p_f32(exp_f32(min_f32(a, b) - m));
  return pick_f32(abs_f32(m) < __builtin_inff(), r, m);
}
FN vf32 log1p_f32(vf32 a) {
  vi32 i = asi_f32(a + 1.0f) - 0x3f2aaaab;
  vi32 n = i >> 23, n1 = n >> 1, n2 = n - n1;
  vf32 s1 = asf_f32(0x3f800000 - (vi32)((vu32)n1 << 23));
  vf32 s2 = asf_f32(0x3f800000 - (vi32)((vu32)n2 << 23));
  vf32 f = madd_f32(a * s1, s2, s1 * s2 - 1.0f);
  vf32 e = cvt_i32_f32(n);
  vf32 z = f * f;
  vf32 r = madd_f32(POLY(f, LOG_F32), z * f, e * 0x1.7f7d1cp-20f);
  r = madd_f32(splat_f32(-0.5f), z, r) + f;
  r = madd_f32(e, splat_f32(0x1.62e400p-1f), r);
  r = pick_f32(a < __builtin_inff(), r, a);
  vf32 low = pick_f32(a == -1.0f, splat_f32(-__builtin_inff()), splat_f32(__builtin_nanf("")));
  r = pick_f32(a <= -1.0f, low, r);
  return pick_f32(abs_f32(a) < 0x1p-40f, a, r);
}

FN vf32 sin_core_f32(vf32 r) { vf32 z = r * r; return madd_f32(POLY(z, SIN_F32), z * r, r); }
FN vf32 cos_core_f32(vf32 r) {
  vf32 z = r * r;
  return madd_f32(POLY(z, COS_F32), z * z, madd_f32(z, splat_f32(-0.5f), splat_f32(1.0f)));
}
FN vf32 sin_f32(vf32 a) {
  vf32 t = a * 0x1.45f306p-1f + 12582912.0f;
  vi32 q = asi_f32(t);
  vf32 r = reduce_angle_f32(a, t - 12582912.0f);
  vf32 v = pick_f32((q & 1) == 0, sin_core_f32(r), cos_core_f32(r));
  v = asf_f32(asi_f32(v) ^ (vi32)((vu32)(q & 2) << 30));
  vi32 far = (abs_f32(a) < angle_limit_f32()) == 0;
  if (any_f32(far)) v = pick_f32(far, lib_sin_f32(a), v);
  return pick_f32(a == 0.0f, a, v);
}
FN vf32 cos_f32(vf32 a) {
  vf32 t = a * 0x1.45f306p-1f + 12582912.0f;
  vi32 q = asi_f32(t);
  vf32 r = reduce_angle_f32(a, t - 12582912.0f);
  vf32 v = pick_f32((q & 1) == 0, cos_core_f32(r), sin_core_f32(r));
  v = asf_f32(asi_f32(v) ^ (vi32)((vu32)((q + 1) & 2) << 30));
  vi32 far = (abs_f32(a) < angle_limit_f32()) == 0;
  if (any_f32(far)) v = pick_f32(far, lib_cos_f32(a), v);
  return v;
}
FN vf32 atan_core_f32(vf32 t) { vf32 z = t * t; return madd_f32(POLY(z, ATAN_F32), z * t, t); }
FN vf32 atan_f32(vf32 a) {
  vf32 x = abs_f32(a);
  vi32 big = x > 1.0f;
  vf32 p = atan_core_f32(pick_f32(big, 1.0f / x, x));
  p = pick_f32(big, (0x1.921fb6p0f - p) - 0x1.777a5cp-25f, p);
  return copysign_f32(p, a);
}
FN vf32 atan2_f32(vf32 a, vf32 b) {
  vf32 y = abs_f32(a), x = abs_f32(b);
  vi32 steep = y > x;
  vf32 n = pick_f32(steep, x, y), d = pick_f32(steep, y, x);
  vf32 t = pick_f32(n == d, pick_f32(n == 0.0f, n, splat_f32(1.0f)), n / d);
  vf32 p = atan_core_f32(t);
  p = pick_f32(steep, (0x1.921fb6p0f - p) - 0x1.777a5cp-25f, p);
  p = pick_f32(asi_f32(b) < 0, (0x1.921fb6p1f - p) - 0x1.777a5cp-24f, p);
  return pick_f32((a != a) | (b != b), a + b, copysign_f32(p, a));
}
FN vf32 asin_f32(vf32 a) {
  vf32 x = abs_f32(a);
  vi32 big = x > 0.5f;
  vf32 z = pick_f32(big, (1.0f - x) * 0.5f, x * x);
  vf32 s = pick_f32(big, sqrt_f32(z), x);
  vf32 p = POLY(z, ASIN_F32) * z * s;
  vf32 h = 0x1.921fb6p0f - 2.0f * s, l = (0x1.921fb6p0f - h) - 2.0f * s;
  vf32 r = h + (madd_f32(p, splat_f32(-2.0f), splat_f32(-0x1.777a5cp-25f)) + l);
  return copysign_f32(pick_f32(big, r, s + p), a);
}
FN vf32 acos_f32(vf32 a) {
  vf32 x = abs_f32(a);
  vi32 big = x > 0.5f;
  vf32 z = pick_f32(big, (1.0f - x) * 0.5f, x * x);
  vf32 s = pick_f32(big, sqrt_f32(z), a);
  vf32 p = POLY(z, ASIN_F32) * z * s;
  vf32 q = 2.0f * (s + p);
  vf32 l = madd_f32(p, splat_f32(2.0f), splat_f32(0x1.777a5cp-24f));
  q = pick_f32(a < 0.0f, (0x1.921fb6p1f - 2.0f * s) - l, q);
  vf32 m = 0x1.921fb6p0f - (s + (p + 0x1.777a5cp-25f));
  return pick_f32(big, q, m);
}

FN vf32 erf_f32(vf32 a) {
  vf32 x = lowest_f32(splat_f32(4.0f), abs_f32(a));
  vf32 z = x * x;
  vf32 near = madd_f32(POLY(z, ERF_F32), a, a);
  vf32 l = POLY(x, ERFC_LOG_F32);
  vf32 n = nearest_f32(l * 0x1.715476p0f);
  vf32 c = exp_core_f32(reduce_exp_f32(l, n)) * pow2_f32(n);
  return pick_f32(x < 0.925f, near, copysign_f32(1.0f - c, a));
}
"""

# How far the angle reduction reaches and how it goes, with and without fused operations: pi/2 in
# three floats, or in four short pieces whose products with the quotient are exact.
REDUCTIONS: Final[dict[str, str]] = {
    "f32_fma": r"""
FN float angle_limit_f32(void) { return 1e5f; }
FN vf32 reduce_angle_f32(vf32 a, vf32 n) {
  vf32 r = madd_f32(n, splat_f32(-0x1.921fb6p0f), a);
  r = madd_f32(n, splat_f32(0x1.777a5cp-25f), r);
  return madd_f32(n, splat_f32(0x1.ee59dap-50f), r);
}
""",
    "f32_short": r"""
FN float angle_limit_f32(void) { return 4096.0f; }
FN vf32 reduce_angle_f32(vf32 a, vf32 n) {
  vf32 r = ((a - n * 0x1.92p0f) - n * 0x1.fb4p-12f) - n * 0x1.444p-24f;
  return r - n * 0x1.68c234p-39f;
}
""",
}
