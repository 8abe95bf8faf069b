"""Double precision elementary functions: C text and coefficients; see `c_math` for the notation.

Methods: Cody and Waite (1980) for the reductions; log through s = f/(2+f) as in Sun's fdlibm
description; base 2 and 10 logarithms with the leading part split in two. Rarer functions call the
process's libm lane by lane. The ``*_core`` functions serve single precision callers: their error
is far below a float's last place, not below a double's.
"""

from __future__ import annotations

from typing import Final

COEFFICIENTS: Final[dict[str, tuple[str, ...]]] = {
    # (e^r - 1 - r) / r^2 on |r| <= ln(2)/2
    "EXPM1_F64": (
        "0x1.0p-1", "0x1.5555555555559p-3", "0x1.555555555553ep-5", "0x1.111111110f672p-7",
        "0x1.6c16c16c1f26dp-10", "0x1.a01a01b002597p-13", "0x1.a01a017b63614p-16",
        "0x1.71ddf7fd696bdp-19", "0x1.27e5368bf7110p-22", "0x1.af5f6a13e6b3ep-26",
        "0x1.1ee8a2d05ab8bp-29",
    ),
    # (2^r - 1) / r on |r| <= 1/2
    "EXP2_F64": (
        "0x1.62e42fefa39efp-1", "0x1.ebfbdff82c58fp-3", "0x1.c6b08d704a0cfp-5",
        "0x1.3b2ab6fba4e22p-7", "0x1.5d87fe78a26c9p-10", "0x1.430912f883cdbp-13",
        "0x1.ffcbfc74d608dp-17", "0x1.62c021e274666p-20", "0x1.b524dd5543c1dp-24",
        "0x1.e4d06c618e5d4p-28", "0x1.ea014f0373403p-32", "0x1.c2ceaf897079ep-36",
    ),
    # (2 atanh(s)/s - 2) / s^2 on s^2 <= 0.0295, in s^2
    "LOG_F64": (
        "0x1.555555555557cp-1", "0x1.99999999855fep-2", "0x1.2492493dffdf9p-2",
        "0x1.c71c54bf98242p-3", "0x1.7465c2bdb612ap-3", "0x1.39acdc1b05082p-3",
        "0x1.2ea035b75e65ep-3",
    ),
    # (sin(r)/r - 1) / r^2 and (cos(r) - 1 + r^2/2) / r^4 on |r| <= pi/4, in r^2
    "SIN_F64": (
        "-0x1.555555555554cp-3", "0x1.111111110fb9dp-7", "-0x1.a01a019c57de7p-13",
        "0x1.71de35a45119fp-19", "-0x1.ae5e805977333p-26", "0x1.5d98b407bc3efp-33",
    ),
    "COS_F64": (
        "0x1.555555555554ap-5", "-0x1.6c16c16c14e00p-10", "0x1.a01a019c5c441p-16",
        "-0x1.27e4f7cd42c08p-22", "0x1.1ee9c3471d002p-29", "-0x1.8f99d753087e3p-37",
    ),
    # erf(x)/x - 1 on |x| <= 1, in x^2
    "ERF_F64": (
        "0x1.06eba8214db68p-3", "-0x1.812746b0379b8p-2", "0x1.ce2f21a040a08p-4",
        "-0x1.b82ce311edf97p-6", "0x1.565bccf781efap-8", "-0x1.c02daffcaa12bp-11",
        "0x1.f9a2b473802b7p-14", "-0x1.f4c9ec7298a5fp-17", "0x1.b97c08f8ac2a9p-20",
        "-0x1.5befa11b6eb3ep-23", "0x1.d6767b95318fbp-27", "-0x1.a9bdf1e72d7e4p-31",
    ),
    # exp(x^2) erfc(x) in t = (x-2)/(x+2), weighted for 1 - erfc(x) on 1 <= x <= 6
    "ERFCX_F64": (
        "0x1.058671b52c776p-2", "-0x1.b57034efd3f43p-2", "0x1.eeea7dc8a7dbap-3",
        "-0x1.437f0b68cd5f0p-4", "0x1.e947157c7ccbap-9", "0x1.ca95ed57b64c9p-8",
        "-0x1.bc25880d72a8ep-11", "-0x1.016b27e6536ebp-10", "0x1.6d4318976bd10p-15",
        "0x1.6d779972f6559p-13", "0x1.cd0dbfd77a607p-16", "-0x1.c34054646af10p-16",
        "-0x1.af01378d4aa4ap-17",
    ),
    # exp(x^2) erfc(x) in t = (x-4)/(x+4) on 0 <= x <= 10.3, to single precision's needs
    "ERFCX_SHORT_F64": (
        "0x1.18932bf03c9e6p-3", "-0x1.0949227bbea65p-2", "0x1.bff01ab645af1p-3",
        "-0x1.5066631c29e7fp-3", "0x1.be50167dc6966p-4", "-0x1.027de236a185cp-4",
        "0x1.00686cab85c38p-5", "-0x1.a4bbab35c5f53p-7", "0x1.09fe096b82be5p-8",
        "-0x1.ab553a28ac28ap-11", "-0x1.d9aa14f97e77ap-16", "0x1.a9c97253aec2ap-14",
    ),
    # For float's pow: 2 atanh(s) / (s ln 2) in s^2, and (2^r - 1) / r on |r| <= 1/2
    "LOG2_SHORT_F64": (
        "0x1.71547652beef9p+1", "0x1.ec709d1197be6p-1", "0x1.277780cd821bcp-1",
        "0x1.a58d1e2f74580p-2", "0x1.5cf005abbfb45p-2",
    ),
    "EXP2_SHORT_F64": (
        "0x1.62e42ff0e31c8p-1", "0x1.ebfbe07776570p-3", "0x1.c6b08abd9ae2ap-5",
        "0x1.3b29f3a66fc5bp-7", "0x1.5d8a881421ce8p-10", "0x1.445c812828539p-13",
        "0x1.fde457a0e4824p-17",
    ),
}  # fmt: skip

SOURCE: Final = r"""
FN vf64 rsqrt_f64(vf64 a) { return 1.0 / sqrt_f64(a); }
FN vf64 reciprocal_f64(vf64 a) { return 1.0 / a; }

FN vf64 nearest_f64(vf64 x) { return (x + 0x1.8p52) - 0x1.8p52; }
FN vf64 reduce_exp_f64(vf64 x, vf64 n) {
  vf64 r = madd_f64(n, splat_f64(-0x1.62e42fefa2p-1), x);
  return madd_f64(n, splat_f64(-0x1.9ef35793c7673p-41), r);
}
FN vf64 exp_core_f64(vf64 r) { return madd_f64(POLY(r, EXPM1_F64), r * r, r) + 1.0; }
FN vf64 exp_f64(vf64 a) {
  vf64 x = highest_f64(splat_f64(-746.0), lowest_f64(splat_f64(710.0), a));
  vf64 n = nearest_f64(x * 0x1.71547652b82fep0);
  return ldexp_f64(exp_core_f64(reduce_exp_f64(x, n)), n);
}
FN vf64 exp2_f64(vf64 a) {
  vf64 x = highest_f64(splat_f64(-1076.0), lowest_f64(splat_f64(1025.0), a));
  vf64 n = nearest_f64(x);
  vf64 r = x - n;
  return ldexp_f64(madd_f64(POLY(r, EXP2_F64), r, splat_f64(1.0)), n);
}
FN vf64 pow2_f64(vf64 n) {
  return asf_f64((vi64)((vu64)asi_f64(n + 0x1.80000000003ffp52) << 52));
}
FN vf64 expm1_core_f64(vf64 x) {
  vf64 n = nearest_f64(x * 0x1.71547652b82fep0);
  vf64 r = reduce_exp_f64(x, n);
  vf64 s = pow2_f64(n);
  return madd_f64(s, madd_f64(POLY(r, EXPM1_F64), r * r, r), s - 1.0);
}
FN vf64 expm1_f64(vf64 a) {
  vf64 x = highest_f64(splat_f64(-40.0), lowest_f64(splat_f64(710.0), a));
  vf64 n = nearest_f64(x * 0x1.71547652b82fep0);
  vf64 r = reduce_exp_f64(x, n);
  vf64 s = pow2_f64(n - 1.0);
  vf64 half = madd_f64(s, madd_f64(POLY(r, EXPM1_F64), r * r, r), s - 0.5);
  return pick_f64(abs_f64(a) < 0x1p-60, a, half + half);
}
FN vf64 sigmoid_f64(vf64 a) {
  vf64 e = exp_f64(-abs_f64(a)), d = 1.0 + e;
  vf64 q = pick_f64(a < 0.0, e, splat_f64(1.0)) / d;
  vf64 inverse = pick_f64(a < 0.0, 1.0 - q, q);
  return madd_f64(q * ((d - 1.0) - e), inverse, q);
}
FN vf64 tanh_f64(vf64 a) {
  vf64 x = lowest_f64(splat_f64(20.0), abs_f64(a));
  vf64 t = expm1_core_f64(x + x), d = t + 2.0;
  vf64 q = t / d;
  vf64 l = pick_f64(t < 2.0, t - (d - 2.0), splat_f64(0.0));
  q = madd_f64(q * l, madd_f64(q, splat_f64(0.5), splat_f64(-0.5)), q);
  return copysign_f64(q, a);
}
FN vf64 erf_f64(vf64 a) {
  vf64 x = lowest_f64(splat_f64(6.0), abs_f64(a));
  vf64 z = x * x;
  vf64 near = madd_f64(POLY(z, ERF_F64), a, a);
  vf64 t = (x - 2.0) / (x + 2.0);
  vf64 n = nearest_f64(z * -0x1.71547652b82fep0);
  vf64 c = exp_core_f64(reduce_exp_f64(-z, n)) * pow2_f64(n) * POLY(t, ERFCX_F64);
  return pick_f64(x < 1.0, near, copysign_f64(1.0 - c, a));
}

FN vi64 exponent_f64(vi64 i) {
  return (vi64)((vu64)(i + 0x4000000000000000l) >> 52) - 1024;
}
FN vf64 small_int_f64(vi64 n) { return asf_f64(n + 0x4338000000000000l) - 0x1.8p52; }
FN vf64 log_domain_f64(vf64 a, vf64 r) {
  r = pick_f64(a < __builtin_inf(), r, a);
  vf64 low = pick_f64(a == 0.0, splat_f64(-__builtin_inf()), splat_f64(__builtin_nan("")));
  return pick_f64(a <= 0.0, low, r);
}
FN vf64 log_split_f64(vf64 a, vf64 *exponent) {
  vi64 small = a < 0x1p-1022;
  vi64 i = asi_f64(pick_f64(small, a * 0x1p52, a)) - 0x3fe6a09e667f3bcdl;
  *exponent = small_int_f64(exponent_f64(i)) - pick_f64(small, splat_f64(52.0), splat_f64(0.0));
  return asf_f64((i & 0xfffffffffffffl) + 0x3fe6a09e667f3bcdl) - 1.0;
}
FN vf64 log_tail_f64(vf64 f, vf64 half_square) {
  vf64 s = f / (f + 2.0);
  vf64 z = s * s;
  return s * madd_f64(z, POLY(z, LOG_F64), half_square);
}
FN vf64 log_join_f64(vf64 e, vf64 f) {
  vf64 h = 0.5 * f * f;
  vf64 t = log_tail_f64(f, h) + e * 0x1.9ef35793c7673p-41;
  return madd_f64(e, splat_f64(0x1.62e42fefa2p-1), f - (h - t));
}
FN vf64 log_f64(vf64 a) {
  vf64 e, f = log_split_f64(a, &e);
  return log_domain_f64(a, log_join_f64(e, f));
}
FN vf64 upper_f64(vf64 a) { return asf_f64(asi_f64(a) & (-0x100000000l)); }
FN vf64 log2_f64(vf64 a) {
  vf64 e, f = log_split_f64(a, &e);
  vf64 h = 0.5 * f * f;
  vf64 hi = upper_f64(f - h);
  vf64 lo = ((f - hi) - h) + log_tail_f64(f, h);
  vf64 big = hi * 0x1.715476p0;
  vf64 rest = madd_f64(lo + hi, splat_f64(0x1.4ae0bf85ddf44p-26), lo * 0x1.715476p0);
  vf64 w = e + big;
  return log_domain_f64(a, w + (rest + ((e - w) + big)));
}
FN vf64 log10_f64(vf64 a) {
  vf64 e, f = log_split_f64(a, &e);
  vf64 h = 0.5 * f * f;
  vf64 hi = upper_f64(f - h);
  vf64 lo = ((f - hi) - h) + log_tail_f64(f, h);
  vf64 big = hi * 0x1.bcb7b1p-2, y = e * 0x1.34413509f6p-2;
  vf64 rest = madd_f64(lo + hi, splat_f64(0x1.49b9438ca9aaep-28), lo * 0x1.bcb7b1p-2);
  rest = madd_f64(e, splat_f64(0x1.9fef311f12b36p-42), rest);
  vf64 w = y + big;
  return log_domain_f64(a, w + (rest + ((y - w) + big)));
}
FN vf64 logaddexp_f64(vf64 a, vf64 b) {
  vf64 m = max_f64(a, b);
  vf64 r = m + log1p_f64(exp_f64(min_f64(a, b) - m));
  return pick_f64(abs_f64(m) < __builtin_inf(), r, m);
}
FN vf64 log1p_f64(vf64 a) {
  vi64 n = exponent_f64(asi_f64(a + 1.0) - 0x3fe6a09e667f3bcdl);
  vi64 n1 = (vi64)((vu64)(n + 2048) >> 1) - 1024, n2 = n - n1;
  vf64 s1 = asf_f64(0x3ff0000000000000l - (vi64)((vu64)n1 << 52));
  vf64 s2 = asf_f64(0x3ff0000000000000l - (vi64)((vu64)n2 << 52));
  vf64 r = log_join_f64(small_int_f64(n), madd_f64(a * s1, s2, s1 * s2 - 1.0));
  r = pick_f64(a < __builtin_inf(), r, a);
  vf64 low = pick_f64(a == -1.0, splat_f64(-__builtin_inf()), splat_f64(__builtin_nan("")));
  r = pick_f64(a <= -1.0, low, r);
  return pick_f64(abs_f64(a) < 0x1p-60, a, r);
}

FN vf64 sin_core_f64(vf64 r) { vf64 z = r * r; return madd_f64(POLY(z, SIN_F64), z * r, r); }
FN vf64 cos_core_f64(vf64 r) {
  vf64 z = r * r, h = 0.5 * z, w = 1.0 - h;
  return w + madd_f64(POLY(z, COS_F64), z * z, (1.0 - w) - h);
}
FN vf64 sin_f64(vf64 a) {
  vf64 t = a * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  vi64 q = asi_f64(t);
  vf64 r = reduce_angle_f64(a, t - 0x1.8p52);
  vf64 v = pick_f64((q & 1) == 0, sin_core_f64(r), cos_core_f64(r));
  v = asf_f64(asi_f64(v) ^ (vi64)((vu64)(q & 2) << 62));
  vi64 far = (abs_f64(a) < 0x1p20) == 0;
  if (any_f64(far)) v = pick_f64(far, lib_sin_f64(a), v);
  return pick_f64(a == 0.0, a, v);
}
FN vf64 cos_f64(vf64 a) {
  vf64 t = a * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  vi64 q = asi_f64(t);
  vf64 r = reduce_angle_f64(a, t - 0x1.8p52);
  vf64 v = pick_f64((q & 1) == 0, cos_core_f64(r), sin_core_f64(r));
  v = asf_f64(asi_f64(v) ^ (vi64)((vu64)((q + 1) & 2) << 62));
  vi64 far = (abs_f64(a) < 0x1p20) == 0;
  if (any_f64(far)) v = pick_f64(far, lib_cos_f64(a), v);
  return v;
}

FN vf64 tan_core(vf64 a) {
  vf64 t = a * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  vi64 odd = (asi_f64(t) & 1) == 1;
  vf64 r = reduce_angle_f64(a, t - 0x1.8p52);
  vf64 s = sin_core_f64(r), c = cos_core_f64(r);
  vf64 v = pick_f64(odd, c, s) / pick_f64(odd, -s, c);
  vi64 far = (abs_f64(a) < 0x1p20) == 0;
  if (any_f64(far)) v = pick_f64(far, lib_tan_f64(a), v);
  return pick_f64(a == 0.0, a, v);
}
FN vf64 erfc_core(vf64 a) {
  vf64 x = lowest_f64(splat_f64(11.0), abs_f64(a));
  vf64 t = (x - 4.0) / (x + 4.0);
  vf64 c = exp_f64(-x * x) * POLY(t, ERFCX_SHORT_F64);
  return pick_f64(a < 0.0, 2.0 - c, c);
}
FN vf64 pow_core(vf64 x, vf64 y) {
  vi64 i = asi_f64(x) - 0x3fe6a09e667f3bcdl;
  vf64 f = asf_f64((i & 0xfffffffffffffl) + 0x3fe6a09e667f3bcdl) - 1.0;
  vf64 s = f / (f + 2.0), z = s * s;
  vf64 l = madd_f64(s, POLY(z, LOG2_SHORT_F64), small_int_f64(exponent_f64(i)));
  vf64 t = highest_f64(splat_f64(-200.0), lowest_f64(splat_f64(200.0), y * l));
  vf64 n = nearest_f64(t), d = t - n;
  vf64 r = madd_f64(POLY(d, EXP2_SHORT_F64), d, splat_f64(1.0)) * pow2_f64(n);
  vi64 plain = (x > 0.0) & (x < __builtin_inf()) & (abs_f64(y) < __builtin_inf());
  if (any_f64(plain == 0)) r = pick_f64(plain, r, pow_special(x, y));
  return r;
}
FN vf64 pow_special(vf64 x, vf64 y) {
  vf64 r = exp_f64(y * log_f64(abs_f64(x)));
  vf64 whole = trunc_f64(y), half = 0.5 * y;
  vi64 integral = whole == y;
  vi64 odd = integral & (trunc_f64(half) != half);
  r = pick_f64(abs_f64(x) == 1.0, splat_f64(1.0), r);
  r = pick_f64(odd, copysign_f64(r, x), r);
  vi64 bad = (x < 0.0) & (x > -__builtin_inf()) & (integral == 0);
  r = pick_f64(bad, splat_f64(__builtin_nan("")), r);
  r = pick_f64((x != x) | (y != y), x + y, r);
  return pick_f64((y == 0.0) | (x == 1.0), splat_f64(1.0), r);
}
FN vf64 asinh_core(vf64 a) {
  vf64 x = abs_f64(a), z = x * x;
  vf64 r = log_f64(x + sqrt_f64(z + 1.0));
  r = pick_f64(x < 0x1p-8, x - x * z * (1.0 / 6.0), r);
  return copysign_f64(r, a);
}
FN vf64 acosh_core(vf64 a) {
  vf64 r = log_f64(a + sqrt_f64((a - 1.0) * (a + 1.0)));
  return pick_f64(a < 1.0, splat_f64(__builtin_nan("")), r);
}
FN vf64 atanh_core(vf64 a) {
  vf64 r = 0.5 * log_f64((1.0 + a) / (1.0 - a));
  return pick_f64(abs_f64(a) < 0x1p-8, a + a * (a * a) * (1.0 / 3.0), r);
}
"""

REDUCTIONS: Final[dict[str, str]] = {
    "f64_fma": r"""
FN vf64 reduce_angle_f64(vf64 a, vf64 n) {
  vf64 r = madd_f64(n, splat_f64(-0x1.921fb54442d18p0), a);
  r = madd_f64(n, splat_f64(-0x1.1a62633145c07p-54), r);
  return madd_f64(n, splat_f64(0x1.f1976b7ed8fbcp-110), r);
}
""",
    "f64_short": r"""
FN vf64 reduce_angle_f64(vf64 a, vf64 n) {
  vf64 r = ((a - n * 0x1.921fb54p0) - n * 0x1.10b46118p-30) - n * 0x1.313198ap-61;
  return r - n * 0x1.701b839a25205p-92;
}
""",
}
