void cpu_poi_fused_neg(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  float *const b2 = buffers[2];
  const long x1_blocks = (33L + 4095L) / 4096L;
  const long total = 8L * x1_blocks;
  for (long o = 0; o < total; o++) {
    const long x1_from = o % x1_blocks * 4096L;
    const long x1_to = minl(x1_from + 4096L, 33L);
    const long x1_rest = o / x1_blocks;
    const long x0 = x1_rest;
    {
      const long stop = x1_to;
      long x1 = x1_from;
      for (; x1 + 8L <= stop; x1 += 8L) {
        vmask t1 = lt_i32(add_i32(splat_i32(x1), iota_i32(0)), splat_i32(20L));
        float t2[8];
        for (int l = 0; l < 8; l++) t2[l] = l < 8 && ((x1 + l) < 20L) ? b0[(20L * x0 + (x1 + l))] : 0;
        vf32 t3 = ld_f32(t2, 8);
        float t4[8];
        for (int l = 0; l < 8; l++) t4[l] = l < 8 && (20L <= (x1 + l)) ? b1[(13L * x0 + (x1 + l) + -20L)] : 0;
        vf32 t5 = ld_f32(t4, 8);
        vf32 t6 = sel_f32(t1, t3, t5);
        vf32 t7 = neg_f32(t6);
        st_f32(b2 + (33L * x0 + x1), t7, 8);
      }
      if (x1 < stop) { const int n = (int)(stop - x1);
        vmask t8 = lt_i32(add_i32(splat_i32(x1), iota_i32(0)), splat_i32(20L));
        float t9[8];
        for (int l = 0; l < 8; l++) t9[l] = l < n && ((x1 + l) < 20L) ? b0[(20L * x0 + (x1 + l))] : 0;
        vf32 t10 = ld_f32(t9, 8);
        float t11[8];
        for (int l = 0; l < 8; l++) t11[l] = l < n && (20L <= (x1 + l)) ? b1[(13L * x0 + (x1 + l) + -20L)] : 0;
        vf32 t12 = ld_f32(t11, 8);
        vf32 t13 = sel_f32(t8, t10, t12);
        vf32 t14 = neg_f32(t13);
        st_f32(b2 + (33L * x0 + x1), t14, n);
      }
    }
  }
}
