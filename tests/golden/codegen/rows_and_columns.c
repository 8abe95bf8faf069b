void cpu_red_fused_mul_sum_sub_max(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  float *const b2 = buffers[2];
  float *const b3 = buffers[3];
  float *const b4 = buffers[4];
  const long total = 1L;
  for (long o = 0; o < total; o++) {
    float c0[45];
    float t0_all[45];
    float c1[45];
    float t1_all[45];
    for (long w = 0; w < 37L; w += 8L)
      {
        st_f32(c0 + w, splat_f32(0), 8);
        st_f32(c1 + w, splat_f32(-__builtin_inff()), 8);
        st_f32(t0_all + w, splat_f32(0), 8);
        st_f32(t1_all + w, splat_f32(-__builtin_inff()), 8);
      }
    for (long from_x0 = 0; from_x0 < 100L; from_x0 += 64L) {
      const long to_x0 = minl(from_x0 + 64L, 100L);
      for (long x0 = from_x0; x0 < to_x0; x0 += 1)
        {
          vf32 a0 = splat_f32(0);
          vf32 ea0 = splat_f32(0);
          vf32 p0_0 = splat_f32(0);
          vf32 p0_1 = splat_f32(0);
          vf32 p0_2 = splat_f32(0);
          vf32 p0_3 = splat_f32(0);
          {
            for (long k = 0; k < 37L; k += 2048L) {
              const long stop = minl(k + 2048L, 37L);
              long x1 = k;
              for (; x1 + 32L <= stop; x1 += 32L) {
                vf32 t1 = ld_f32(b0 + (37L * x0 + x1), 8);
                vf32 t2 = ld_f32(b1 + (37L * x0 + x1), 8);
                vf32 t3 = mul_f32(t1, t2);
                p0_0 = add_f32(p0_0, t3);
                vf32 t4 = ld_f32(c1 + x1, 8);
                st_f32(c1 + x1, max_f32(t4, t1), 8);
                vf32 t5 = ld_f32(b0 + (37L * x0 + (x1 + 8L)), 8);
                vf32 t6 = ld_f32(b1 + (37L * x0 + (x1 + 8L)), 8);
                vf32 t7 = mul_f32(t5, t6);
                p0_1 = add_f32(p0_1, t7);
                vf32 t8 = ld_f32(c1 + (x1 + 8L), 8);
                st_f32(c1 + (x1 + 8L), max_f32(t8, t5), 8);
                vf32 t9 = ld_f32(b0 + (37L * x0 + (x1 + 16L)), 8);
                vf32 t10 = ld_f32(b1 + (37L * x0 + (x1 + 16L)), 8);
                vf32 t11 = mul_f32(t9, t10);
                p0_2 = add_f32(p0_2, t11);
                vf32 t12 = ld_f32(c1 + (x1 + 16L), 8);
                st_f32(c1 + (x1 + 16L), max_f32(t12, t9), 8);
                vf32 t13 = ld_f32(b0 + (37L * x0 + (x1 + 24L)), 8);
                vf32 t14 = ld_f32(b1 + (37L * x0 + (x1 + 24L)), 8);
                vf32 t15 = mul_f32(t13, t14);
                p0_3 = add_f32(p0_3, t15);
                vf32 t16 = ld_f32(c1 + (x1 + 24L), 8);
                st_f32(c1 + (x1 + 24L), max_f32(t16, t13), 8);
              }
              for (; x1 + 8L <= stop; x1 += 8L) {
                vf32 t17 = ld_f32(b0 + (37L * x0 + x1), 8);
                vf32 t18 = ld_f32(b1 + (37L * x0 + x1), 8);
                vf32 t19 = mul_f32(t17, t18);
                p0_0 = add_f32(p0_0, t19);
                vf32 t20 = ld_f32(c1 + x1, 8);
                st_f32(c1 + x1, max_f32(t20, t17), 8);
              }
              if (x1 < stop) { const int n = (int)(stop - x1);
                vf32 t21 = ld_f32(b0 + (37L * x0 + x1), n);
                vf32 t22 = ld_f32(b1 + (37L * x0 + x1), n);
                vf32 t23 = mul_f32(t21, t22);
                p0_0 = add_f32(p0_0, sel_f32(lt_i32(iota_i32(0), splat_i32(n)), t23, splat_f32(0)));
                vf32 t24 = ld_f32(c1 + x1, 8);
                st_f32(c1 + x1, max_f32(t24, t21), n);
              }
              { vf32 y = sub_f32(add_f32(add_f32(p0_0, p0_1), add_f32(p0_2, p0_3)), ea0); vf32 z = add_f32(a0, y); ea0 = sub_f32(sub_f32(z, a0), y); a0 = z; } p0_0 = splat_f32(0); p0_1 = splat_f32(0); p0_2 = splat_f32(0); p0_3 = splat_f32(0);
            }
          }
          vf32 r0 = splat_f32(hsum_f32(a0));
          {
            const long stop = 37L;
            long x1 = 0;
            for (; x1 + 8L <= stop; x1 += 8L) {
              vf32 t25 = ld_f32(b0 + (37L * x0 + x1), 8);
              vf32 t26 = ld_f32(b1 + (37L * x0 + x1), 8);
              vf32 t27 = mul_f32(t25, t26);
              vf32 t28 = sub_f32(t27, r0);
              st_f32(b2 + (37L * x0 + x1), t28, 8);
              vf32 t29 = ld_f32(c0 + x1, 8);
              st_f32(c0 + x1, add_f32(t29, t28), 8);
            }
            if (x1 < stop) { const int n = (int)(stop - x1);
              vf32 t30 = ld_f32(b0 + (37L * x0 + x1), n);
              vf32 t31 = ld_f32(b1 + (37L * x0 + x1), n);
              vf32 t32 = mul_f32(t30, t31);
              vf32 t33 = sub_f32(t32, r0);
              st_f32(b2 + (37L * x0 + x1), t33, n);
              vf32 t34 = ld_f32(c0 + x1, 8);
              st_f32(c0 + x1, add_f32(t34, t33), n);
            }
          }
        }
      for (long w = 0; w < 37L; w += 8L)
        {
          st_f32(t0_all + w, add_f32(ld_f32(t0_all + w, 8), ld_f32(c0 + w, 8)), 8); st_f32(c0 + w, splat_f32(0), 8);
          st_f32(t1_all + w, max_f32(ld_f32(t1_all + w, 8), ld_f32(c1 + w, 8)), 8); st_f32(c1 + w, splat_f32(-__builtin_inff()), 8);
        }
    }
    {
      {
        long x1 = 0;
        for (; x1 + 8L <= 37L; x1 += 8L) {
          vf32 t35 = ld_f32(t0_all + x1, 8);
          st_f32(b3 + x1, t35, 8);
          vf32 t36 = ld_f32(t1_all + x1, 8);
          st_f32(b4 + x1, t36, 8);
        }
        if (x1 < 37L) { const int n = (int)(37L - x1);
          vf32 t37 = ld_f32(t0_all + x1, 8);
          st_f32(b3 + x1, t37, n);
          vf32 t38 = ld_f32(t1_all + x1, 8);
          st_f32(b4 + x1, t38, n);
        }
      }
    }
  }
}
