package isonomy.yarn;

import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.security.CodeSource;
import java.security.ProtectionDomain;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;
import org.objectweb.asm.Type;

/** Replaces CapacityScheduler by the plugin wherever Hadoop's tests and the ResourceManager create or name it. */
public final class SwapAgent implements ClassFileTransformer {
  private static final String STOCK =
      "org/apache/hadoop/yarn/server/resourcemanager/scheduler/capacity/CapacityScheduler";
  private static final String OURS = "isonomy/yarn/SwappedScheduler";
  private static final String RM = "org/apache/hadoop/yarn/server/resourcemanager/ResourceManager";

  private SwapAgent() {}

  public static void premain(String arguments, Instrumentation jvm) {
    jvm.addTransformer(new SwapAgent());
  }

  @Override
  public byte[] transform(ClassLoader loader, String name, Class<?> redefined, ProtectionDomain from, byte[] bytes) {
    CodeSource source = from == null ? null : from.getCodeSource();
    boolean ofTests = name != null && name.startsWith("org/apache/hadoop/yarn/")
        && source != null && source.getLocation().getPath().endsWith("-tests.jar");
    if (!ofTests && !RM.equals(name)) {
      return null;
    }
    ClassReader reader = new ClassReader(bytes);
    ClassWriter writer = new ClassWriter(reader, 0);
    reader.accept(new Swap(writer), 0);
    return writer.toByteArray();
  }

  private static final class Swap extends ClassVisitor {
    Swap(ClassVisitor next) {
      super(Opcodes.ASM9, next);
    }

    @Override
    public void visit(int version, int access, String name, String signature, String parent, String[] interfaces) {
      super.visit(version, access, name, signature, STOCK.equals(parent) ? OURS : parent, interfaces);
    }

    @Override
    public MethodVisitor visitMethod(int access, String name, String descriptor, String signature, String[] thrown) {
      MethodVisitor next = super.visitMethod(access, name, descriptor, signature, thrown);
      return new MethodVisitor(Opcodes.ASM9, next) {
        @Override
        public void visitTypeInsn(int opcode, String type) {
          super.visitTypeInsn(opcode, opcode == Opcodes.NEW && STOCK.equals(type) ? OURS : type);
        }

        @Override
        public void visitMethodInsn(int opcode, String owner, String method, String of, boolean isInterface) {
          boolean swap = opcode == Opcodes.INVOKESPECIAL && STOCK.equals(owner);
          super.visitMethodInsn(opcode, swap ? OURS : owner, method, of, isInterface);
        }

        @Override
        public void visitLdcInsn(Object value) {
          boolean literal = value instanceof Type && Type.getObjectType(STOCK).equals(value);
          boolean text = STOCK.replace('/', '.').equals(value);
          super.visitLdcInsn(literal ? Type.getObjectType(OURS) : text ? OURS.replace('/', '.') : value);
        }
      };
    }
  }
}
