void cpu_red_fused_sum_max(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  float *const b2 = buffers[2];
  const long wide = 131L / 32L;
  const long strips = wide + (131L - wide * 32L + 7L) / 8L;
  const long total = 1L * strips;
  for (long o = 0; o < total; o++) {
    const long strip = o % strips;
    if (strip < wide) {
      const long x1 = strip * 32L;
      vf32 a0x0 = splat_f32(0);
      vf32 ea0x0 = splat_f32(0);
      vf32 p0_0x0 = splat_f32(0);
      vf32 a1x0 = splat_f32(-__builtin_inff());
      vf32 p1_0x0 = splat_f32(-__builtin_inff());
      vf32 a0x1 = splat_f32(0);
      vf32 ea0x1 = splat_f32(0);
      vf32 p0_0x1 = splat_f32(0);
      vf32 a1x1 = splat_f32(-__builtin_inff());
      vf32 p1_0x1 = splat_f32(-__builtin_inff());
      vf32 a0x2 = splat_f32(0);
      vf32 ea0x2 = splat_f32(0);
      vf32 p0_0x2 = splat_f32(0);
      vf32 a1x2 = splat_f32(-__builtin_inff());
      vf32 p1_0x2 = splat_f32(-__builtin_inff());
      vf32 a0x3 = splat_f32(0);
      vf32 ea0x3 = splat_f32(0);
      vf32 p0_0x3 = splat_f32(0);
      vf32 a1x3 = splat_f32(-__builtin_inff());
      vf32 p1_0x3 = splat_f32(-__builtin_inff());
      {
        for (long k = 0; k < 50L; k += 64L) {
          const long end = minl(k + 64L, 50L);
          for (long x0 = k; x0 < end; x0 += 1)
            {
              vf32 t1 = ld_f32(b0 + (131L * x0 + x1), 8);
              p0_0x0 = add_f32(p0_0x0, t1);
              p1_0x0 = max_f32(p1_0x0, t1);
              vf32 t2 = ld_f32(b0 + (131L * x0 + (x1 + 8L)), 8);
              p0_0x1 = add_f32(p0_0x1, t2);
              p1_0x1 = max_f32(p1_0x1, t2);
              vf32 t3 = ld_f32(b0 + (131L * x0 + (x1 + 16L)), 8);
              p0_0x2 = add_f32(p0_0x2, t3);
              p1_0x2 = max_f32(p1_0x2, t3);
              vf32 t4 = ld_f32(b0 + (131L * x0 + (x1 + 24L)), 8);
              p0_0x3 = add_f32(p0_0x3, t4);
              p1_0x3 = max_f32(p1_0x3, t4);
            }
          { vf32 y = sub_f32(p0_0x0, ea0x0); vf32 z = add_f32(a0x0, y); ea0x0 = sub_f32(sub_f32(z, a0x0), y); a0x0 = z; } p0_0x0 = splat_f32(0);
          a1x0 = max_f32(a1x0, p1_0x0); p1_0x0 = splat_f32(-__builtin_inff());
          { vf32 y = sub_f32(p0_0x1, ea0x1); vf32 z = add_f32(a0x1, y); ea0x1 = sub_f32(sub_f32(z, a0x1), y); a0x1 = z; } p0_0x1 = splat_f32(0);
          a1x1 = max_f32(a1x1, p1_0x1); p1_0x1 = splat_f32(-__builtin_inff());
          { vf32 y = sub_f32(p0_0x2, ea0x2); vf32 z = add_f32(a0x2, y); ea0x2 = sub_f32(sub_f32(z, a0x2), y); a0x2 = z; } p0_0x2 = splat_f32(0);
          a1x2 = max_f32(a1x2, p1_0x2); p1_0x2 = splat_f32(-__builtin_inff());
          { vf32 y = sub_f32(p0_0x3, ea0x3); vf32 z = add_f32(a0x3, y); ea0x3 = sub_f32(sub_f32(z, a0x3), y); a0x3 = z; } p0_0x3 = splat_f32(0);
          a1x3 = max_f32(a1x3, p1_0x3); p1_0x3 = splat_f32(-__builtin_inff());
        }
      }
      st_f32(b1 + x1, a0x0, 8);
      st_f32(b2 + x1, a1x0, 8);
      st_f32(b1 + (x1 + 8L), a0x1, 8);
      st_f32(b2 + (x1 + 8L), a1x1, 8);
      st_f32(b1 + (x1 + 16L), a0x2, 8);
      st_f32(b2 + (x1 + 16L), a1x2, 8);
      st_f32(b1 + (x1 + 24L), a0x3, 8);
      st_f32(b2 + (x1 + 24L), a1x3, 8);
    } else {
      const long x1 = wide * 32L + (strip - wide) * 8L;
      const int n = (int)minl(8L, 131L - x1);
      vf32 a0x0 = splat_f32(0);
      vf32 ea0x0 = splat_f32(0);
      vf32 p0_0x0 = splat_f32(0);
      vf32 a1x0 = splat_f32(-__builtin_inff());
      vf32 p1_0x0 = splat_f32(-__builtin_inff());
      {
        for (long k = 0; k < 50L; k += 64L) {
          const long end = minl(k + 64L, 50L);
          for (long x0 = k; x0 < end; x0 += 1)
            {
              vf32 t5 = ld_f32(b0 + (131L * x0 + x1), n);
              p0_0x0 = add_f32(p0_0x0, t5);
              p1_0x0 = max_f32(p1_0x0, t5);
            }
          { vf32 y = sub_f32(p0_0x0, ea0x0); vf32 z = add_f32(a0x0, y); ea0x0 = sub_f32(sub_f32(z, a0x0), y); a0x0 = z; } p0_0x0 = splat_f32(0);
          a1x0 = max_f32(a1x0, p1_0x0); p1_0x0 = splat_f32(-__builtin_inff());
        }
      }
      st_f32(b1 + x1, a0x0, n);
      st_f32(b2 + x1, a1x0, n);
    }
  }
}
