void cpu_red_fused_cumprod_add(void **buffers, const long *sizes) {
  long *const b0 = buffers[0];
  long *const b1 = buffers[1];
  const long wide = 35L / 16L;
  const long strips = wide + (35L - wide * 16L + 3L) / 4L;
  const long total = 1L * strips;
  for (long o = 0; o < total; o++) {
    const long strip = o % strips;
    if (strip < wide) {
      const long x1 = strip * 16L;
      vi64 a0x0 = splat_i64(1);
      vi64 t3 = splat_i64(1L);
      vi64 a0x1 = splat_i64(1);
      vi64 t7 = splat_i64(1L);
      vi64 a0x2 = splat_i64(1);
      vi64 t11 = splat_i64(1L);
      vi64 a0x3 = splat_i64(1);
      vi64 t15 = splat_i64(1L);
      for (long x0 = 0; x0 < 40L; x0 += 1)
        {
          vi64 t1 = ld_i64(b0 + (35L * x0 + x1), 4);
          vi64 t2 = mul_i64(a0x0, t1);
          a0x0 = t2;
          vi64 t4 = add_i64(t2, t3);
          st_i64(b1 + (35L * x0 + x1), t4, 4);
          vi64 t5 = ld_i64(b0 + (35L * x0 + (x1 + 4L)), 4);
          vi64 t6 = mul_i64(a0x1, t5);
          a0x1 = t6;
          vi64 t8 = add_i64(t6, t7);
          st_i64(b1 + (35L * x0 + (x1 + 4L)), t8, 4);
          vi64 t9 = ld_i64(b0 + (35L * x0 + (x1 + 8L)), 4);
          vi64 t10 = mul_i64(a0x2, t9);
          a0x2 = t10;
          vi64 t12 = add_i64(t10, t11);
          st_i64(b1 + (35L * x0 + (x1 + 8L)), t12, 4);
          vi64 t13 = ld_i64(b0 + (35L * x0 + (x1 + 12L)), 4);
          vi64 t14 = mul_i64(a0x3, t13);
          a0x3 = t14;
          vi64 t16 = add_i64(t14, t15);
          st_i64(b1 + (35L * x0 + (x1 + 12L)), t16, 4);
        }
    } else {
      const long x1 = wide * 16L + (strip - wide) * 4L;
      const int n = (int)minl(4L, 35L - x1);
      vi64 a0x0 = splat_i64(1);
      vi64 t19 = splat_i64(1L);
      for (long x0 = 0; x0 < 40L; x0 += 1)
        {
          vi64 t17 = ld_i64(b0 + (35L * x0 + x1), n);
          vi64 t18 = mul_i64(a0x0, t17);
          a0x0 = t18;
          vi64 t20 = add_i64(t18, t19);
          st_i64(b1 + (35L * x0 + x1), t20, n);
        }
    }
  }
}
