void cpu_red_fused_sum(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  const long total = 1L;
  for (long o = 0; o < total; o++) {
    vf32 a0 = splat_f32(0);
    vf32 ea0 = splat_f32(0);
    vf32 p0_0 = splat_f32(0);
    vf32 p0_1 = splat_f32(0);
    vf32 p0_2 = splat_f32(0);
    vf32 p0_3 = splat_f32(0);
    {
      for (long k = 0; k < 7000L; k += 2048L) {
        const long stop = minl(k + 2048L, 7000L);
        long x0 = k;
        for (; x0 + 32L <= stop; x0 += 32L) {
          vf32 t1 = ld_f32(b0 + x0, 8);
          p0_0 = add_f32(p0_0, t1);
          vf32 t2 = ld_f32(b0 + (x0 + 8L), 8);
          p0_1 = add_f32(p0_1, t2);
          vf32 t3 = ld_f32(b0 + (x0 + 16L), 8);
          p0_2 = add_f32(p0_2, t3);
          vf32 t4 = ld_f32(b0 + (x0 + 24L), 8);
          p0_3 = add_f32(p0_3, t4);
        }
        for (; x0 + 8L <= stop; x0 += 8L) {
          vf32 t5 = ld_f32(b0 + x0, 8);
          p0_0 = add_f32(p0_0, t5);
        }
        { vf32 y = sub_f32(add_f32(add_f32(p0_0, p0_1), add_f32(p0_2, p0_3)), ea0); vf32 z = add_f32(a0, y); ea0 = sub_f32(sub_f32(z, a0), y); a0 = z; } p0_0 = splat_f32(0); p0_1 = splat_f32(0); p0_2 = splat_f32(0); p0_3 = splat_f32(0);
      }
    }
    vf32 r0 = splat_f32(hsum_f32(a0));
    st_f32(b1 + 0L, r0, 1);
  }
}
